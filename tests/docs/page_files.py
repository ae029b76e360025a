"""Make the files and runs that the blocks of pages assume: small files and runs under the names that the pages use.

The tutorial, the quick start and most guides make what they need themselves. Other pages name `train.txt` or `runs/NAME`,
which a reader has.
"""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from tests.data.conftest import find
from tests.settings import COMMAND

ROWS = 3000


def prepare(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Make the files and runs that the blocks of a page assume."""
    make_files(folder)
    if page.stem == "00-films":
        write_ratings(folder / "ratings.dat")
    for make in NEEDS.get(page.name, ()):
        make(folder, environment)


def make_files(folder: Path) -> None:
    """Write click logs of every format, a trace and a schema, beside the example scripts."""
    if not (folder / "examples").exists():  # pages of the tutorial share a folder
        (folder / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    dice = np.random.default_rng(0)
    text = criteo(dice)
    for name in ("train.txt", "SAMPLE"):
        (folder / name).write_bytes(text)
    for name in ("day_0.gz", "day_1.gz"):
        (folder / name).write_bytes(gzip.compress(text, mtime=0))
    (folder / "train.csv.zst").write_bytes(zst(avazu(dice)))
    (folder / "UserBehavior.csv").write_bytes(user_behavior(dice))
    (folder / "clicks.csv").write_bytes(globo(dice))
    (folder / "keys.xz").write_bytes(lzma.compress((dice.zipf(1.2, 50_000) % 10_000).astype(">u8").tobytes()))
    (folder / "ads.csv").write_text(ads(dice))
    (folder / "views.csv").write_text(views(dice))
    parquet(folder / "clicks.parquet", dice)
    (folder / "clicks.toml").write_text(SCHEMA)


def write_ratings(path: Path) -> None:
    """Write the ratings of films that the first chapter reads. Skips the test where they are not on this machine."""
    packed = find("movietweetings_141695.dat.zst").read_bytes()
    path.write_bytes(zstandard("decompress", packed))


def ads(dice: np.random.Generator) -> str:
    """Rows of a CSV file of a user's own."""
    users, items, prices = dice.integers(0, 200, ROWS), dice.integers(0, 100, ROWS), dice.exponential(9, ROWS)
    rows = [f"{(u + i) % 3 // 2},{u},{i},{p:.2f}" for u, i, p in zip(users, items, prices, strict=True)]
    return "\n".join(["clicked,user,item,price", *rows]) + "\n"


def views(dice: np.random.Generator) -> str:
    """Rows of a log that holds only what users chose."""
    chosen = zip(dice.integers(0, 200, ROWS), dice.zipf(1.3, ROWS) % 100, strict=True)
    return "\n".join(["viewer,video", *(f"{user},{video}" for user, video in chosen)]) + "\n"


def zst(data: bytes) -> bytes:
    return zstandard("compress", data)


def zstandard(function: str, data: bytes) -> bytes:
    """Call a function of any installed binding of Zstandard."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        with suppress(ImportError):
            found: bytes = getattr(importlib.import_module(name), function)(data)
            return found
    raise ImportError("a binding of Zstandard must be installed")


def criteo(dice: np.random.Generator) -> bytes:
    """Rows in Criteo's format: label, 13 integers, 26 hexadecimal hashes, separated by tabs."""
    labels, counts = dice.integers(0, 2, ROWS), dice.integers(0, 100, (ROWS, 13))
    ids = dice.zipf(1.3, (ROWS, 26)) % 5000
    lines = [
        "\t".join([str(y), *map(str, x), *(f"{each:08x}" for each in c)])
        for y, x, c in zip(labels, counts, ids, strict=True)
    ]
    return ("\n".join(lines) + "\n").encode()


def avazu(dice: np.random.Generator) -> bytes:
    """Rows in Avazu's format, with its header."""
    names = "site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,device_model"
    more = ["device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22))]
    head = ["id", "click", "hour", "C1", "banner_pos", *names.split(","), *more]
    lines = [",".join(head)]
    for row in range(ROWS):
        hour = f"1410{21 + row // 1500:02}{row // 125 % 12:02}"
        lines.append(",".join([str(row), str(row % 2), hour, *map(str, dice.integers(0, 50, len(head) - 3))]))
    return ("\n".join(lines) + "\n").encode()


def user_behavior(dice: np.random.Generator) -> bytes:
    """Rows in Taobao's format: user, item, category, behaviour, seconds since the epoch."""
    users, items = np.sort(dice.integers(1, 100, 20 * ROWS)), dice.integers(1, 2000, 20 * ROWS)
    times = 1511544070 + np.arange(20 * ROWS)
    return "".join(f"{u},{i},{i % 40 + 1},pv,{t}\n" for u, i, t in zip(users, items, times, strict=True)).encode()


def globo(dice: np.random.Generator) -> bytes:
    """Rows in Globo.com's format, with its header."""
    from adaptive_rec.recipes.globo import COLUMNS

    out = io.StringIO()
    out.write(",".join(COLUMNS) + "\n")
    for row in range(ROWS):
        at, user = 1506826800000 + row * 60_000, int(dice.integers(0, 200))
        values = {"user_id": user, "session_id": row, "session_start": at - 1000, "session_size": 2}
        values |= {"click_article_id": int(dice.zipf(1.3)) % 300, "click_timestamp": at}
        out.write(",".join(str(values.get(name, 1)) for name in COLUMNS) + "\n")
    return out.getvalue().encode()


def parquet(path: Path, dice: np.random.Generator) -> None:
    """Write rows with the columns of the pages' schema; nothing if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return
    columns = {
        "clicked": dice.integers(0, 2, ROWS),
        "age": dice.integers(18, 80, ROWS),
        "views": dice.integers(0, 1000, ROWS),
        "user": dice.integers(0, 500, ROWS),
        "item": dice.integers(0, 300, ROWS),
        "seen before": [dice.integers(0, 300, int(count)).tolist() for count in dice.integers(0, 5, ROWS)],
    }
    pq.write_table(pa.table(columns), path)


SCHEMA = """\
label = "clicked"
dense = [{ column = "age" }, { column = "views", transform = "log", missing = 0.0 }]
sparse = [{ column = "user" }, { column = "item" }, { column = "seen before", name = "seen", table = "item" }]
"""


def command(folder: Path, environment: dict[str, str], *arguments: str) -> None:
    """Run one command of adaptive-rec. Raises CalledProcessError if it fails."""
    subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, check=True, capture_output=True, timeout=300)


def finished_runs(folder: Path, environment: dict[str, str]) -> None:
    """Make runs of the smallest preset: NAME, and its copies ONE and OTHER."""
    command(folder, environment, "train", "tiny", "--set", "checkpoint.every_steps=40", "--out", "runs/NAME", "--no-serve")
    for name in ("ONE", "OTHER"):
        shutil.copytree(folder / "runs" / "NAME", folder / "runs" / name)


def configuration(folder: Path, environment: dict[str, str]) -> None:
    """Copy the configuration of the finished runs to my.toml."""
    shutil.copy(folder / "runs" / "NAME" / "config.toml", folder / "my.toml")


def tables(folder: Path, environment: dict[str, str]) -> None:
    """Export tables, as another program would write them."""
    command(folder, environment, "checkpoint", "export", "runs/NAME", "--out", "tables")


def profile(folder: Path, environment: dict[str, str]) -> None:
    """Profile the data of the finished runs."""
    command(folder, environment, "profile", "synthetic", "my.toml", "--out", "profile")


def own_policy(folder: Path, environment: dict[str, str]) -> None:
    """Write a policy as a module of the user."""
    (folder / "my").mkdir()
    text = "from adaptive_rec.policies.hotline import Hotline\n\n\nclass Class(Hotline):\n    name = 'class'\n"
    (folder / "my" / "module.py").write_text(text)


def policy_of_the_guide(folder: Path, environment: dict[str, str]) -> None:
    """Write the policy that the guide to policies of one's own makes."""
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "own-policy.md").read_text()
    (folder / "my_policy.py").write_text(guide.split('title="my_policy.py"\n')[1].split("```")[0])


def live_run(folder: Path, environment: dict[str, str]) -> None:
    """Start a run that ends only when it is stopped, and pause it, so that it takes no time from the blocks."""
    endless = ("--steps", "0", "--set", "data.synthetic.samples=1000000000000")
    command(folder, environment, "train", "tiny", *endless, "--out", "runs/live", "--detach")
    command(folder, environment, "pause")


Maker = Callable[[Path, dict[str, str]], None]
NEEDS: dict[str, tuple[Maker, ...]] = {
    "README.md": (live_run,),
    "command-line.md": (finished_runs, tables, live_run),
    "checkpoints.md": (finished_runs, configuration),
    "compare.md": (own_policy,),
    "security.md": (policy_of_the_guide,),
    "report.md": (finished_runs,),
    "plan.md": (finished_runs, configuration, profile),
}
