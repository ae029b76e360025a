"""The API's description as a file: `python -m adaptive_rec.service.openapi > docs/openapi.json`."""

from __future__ import annotations

import json

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.service.app import create_app
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.run_view import FinishedRun
from adaptive_rec.service.security import Security


def openapi_text() -> str:
    """Return the answer of /api/v1/openapi.json, indented for review. It is the same for every run."""
    values = Knobs().model_dump()
    hello = Hello(False, "", "", 0.0, 0, "", "", "", (), (), values, values, values)
    security = Security("control", "read", "127.0.0.1", 8470, ("127.0.0.1",))
    return json.dumps(create_app(FinishedRun(hello), security).openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(openapi_text(), end="")
