"""`python strangers.py PORT KIND SECONDS RATE`: connections to a port of 127.0.0.1 that show no token, RATE new ones a second.

It prints what came of them, as JSON. No connection is kept for longer than SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n"


class Strangers:
    def __init__(self, port: int) -> None:
        self.port = port
        self.came_of: Counter[str] = Counter()

    async def silent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def half(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /livez HT")
        await reader.read(1)

    async def drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in GET % (b"/livez", self.port, b"X: " + b"a" * 4000):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async def churn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"G")

    async def body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold back the body of a request."""
        writer.write(GET % (b"/livez", self.port, b"Content-Length: 9\r\n"))
        await reader.read(1)

    async def once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._ask(reader, writer, b"/livez", b"")

    async def livez(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._ask(reader, writer, b"/livez", b""):
            pass

    async def wrong(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._ask(reader, writer, b"/api/v1/status", b"Authorization: Bearer %s\r\n" % (b"x" * 43)):
            pass

    async def pipeline(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ask 200 times without waiting, and never read."""
        writer.write(GET % (b"/livez", self.port, b"") * 200)
        await asyncio.sleep(3600)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: bytes, more: bytes) -> bool:
        writer.write(GET % (path, self.port, more))
        answer = await reader.read(4096)
        self.came_of[answer[9:12].decode() or "ended"] += 1
        return bool(answer)

    async def one(self, kind: str, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.came_of["connected"] += 1
                try:
                    await getattr(self, kind)(reader, writer)
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError) as error:
            self.came_of[type(error).__name__] += 1


async def main(port: int, kind: str, seconds: float, rate: float) -> None:
    strangers, begun = Strangers(port), time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    until, made = asyncio.get_running_loop().time() + seconds, 0
    while (passed := time.monotonic() - begun) < seconds:
        while made < passed * rate:
            made += 1
            if len(tasks) < 3000:
                task = asyncio.create_task(strangers.one(kind, until))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    print(json.dumps(strangers.came_of))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
