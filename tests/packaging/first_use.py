"""What a user does first, with an installed package: train on a file, predict, watch a run, wrap a model.

``python first_use.py`` in an empty folder prints a line with the seconds of each part, and ends with 1 at the first that fails.
It imports nothing of the repository, so that it runs in an environment that has the wheel alone.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

COMMAND = Path(sys.prefix) / "bin" / "adaptive-rec"
ROWS = 3_000
WAIT_SECONDS = 900  # kernels compile in the first run, on a busy machine for minutes
QUICK = "run.batch_size=64", "run.threads=1"


def run(*words: str) -> str:
    """Run the installed command; return what it prints."""
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=WAIT_SECONDS)
    if done.returncode:
        raise SystemExit(f"adaptive-rec {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check(holds: bool, told: str) -> None:
    if not holds:
        raise SystemExit(told)


def import_package() -> None:
    import adaptive_rec

    check(Path(adaptive_rec.__file__).is_relative_to(sys.prefix), f"{adaptive_rec.__file__} is not of this environment")
    check(run("--version").split()[1] == adaptive_rec.__version__, "the command is of another version")


def train() -> None:
    """Clicks that depend on the ad: every seventh is clicked nine times out of ten."""
    draw = random.Random(7)
    with open("clicks.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["clicked", "ad", "user", "price"])
        for _ in range(ROWS):
            ad = min(int(draw.expovariate(0.05)), 199)
            out.writerow([int(draw.random() < (0.9 if ad % 7 == 0 else 0.1)), f"ad{ad}", draw.randrange(500), draw.random()])
    run("train", "--data", "clicks.csv", "--label", "clicked", "--out", "clicks", "--no-serve", *settings(*QUICK))
    summary = json.loads(Path("clicks/summary.json").read_text())
    check(summary["eval"]["auc"] > 0.6, f"trained on clicks.csv, AUC {summary['eval']['auc']}")


def predict() -> None:
    run("predict", "clicks", "--data", "clicks.csv", "--out", "scores.csv")
    with open("scores.csv", newline="") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    with open("clicks.csv", newline="") as file:
        labels = [int(row["clicked"]) for row in csv.DictReader(file)]
    check(len(scores) == ROWS, f"{len(scores)} scores of {ROWS} rows")
    clicked = [score for score, label in zip(scores, labels, strict=True) if label]
    others = [score for score, label in zip(scores, labels, strict=True) if not label]
    check(sum(clicked) / len(clicked) > sum(others) / len(others) + 0.1, "clicked rows score no higher than others")


def watch() -> None:
    """Status, dashboard and stop, from outside of a run under way."""
    run("train", "tiny", "--steps=1000000", "--out=served", "--detach", *settings("run.threads=1", "data.epochs=100000"))
    try:
        now = json.loads(run("status", "--json"))
        check(now["run"]["name"] == "served" and now["phase"] == "training", f"the status is {now}")
        check("training" in run("status"), "status does not say that the run trains")
        address, _, code = run("dashboard").strip().partition("#")
        name, _, token = run("dashboard", "--header").strip().partition(": ")
        page = build_opener(ProxyHandler({})).open(Request(address, headers={name: token}), timeout=WAIT_SECONDS)
        check(b"<title>" in page.read() and code.startswith("c="), f"{address} is no dashboard")
    finally:
        run("stop")
    end = time.monotonic() + WAIT_SECONDS
    while not Path("served/summary.json").exists():
        check(time.monotonic() < end, "the run does not end")
        time.sleep(0.2)


def wrap() -> None:
    """A wrapped model has the losses and rows of the plain one, in float64."""
    import torch
    from torch import nn

    import adaptive_rec

    results = []
    for wrapped in (False, True):
        torch.manual_seed(3)
        bag = nn.EmbeddingBag(500, 8, mode="sum", sparse=True, dtype=torch.float64)
        top = nn.Linear(8, 1, dtype=torch.float64)
        model = nn.ModuleDict({"bag": bag, "top": top})
        tables, dense = torch.optim.Adagrad(bag.parameters(), lr=0.05), torch.optim.SGD(top.parameters(), lr=0.1)
        if wrapped:
            adaptive_rec.wrap(model, budget="8KiB", optimizer=tables)
        losses = []
        for _ in range(60):
            ids = (500 * torch.rand(64, 3) ** 3).long()
            tables.zero_grad()
            dense.zero_grad()
            loss = (top(bag(ids)) - (ids.sum(1, keepdim=True) % 2)).square().mean()
            loss.backward()
            tables.step()
            dense.step()
            losses.append(loss.detach())
        results.append((torch.stack(losses), bag.weight.detach().clone()))
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


if __name__ == "__main__":
    for part in (import_package, train, predict, watch, wrap):
        start = time.perf_counter()
        part()
        print(f"{part.__name__} {time.perf_counter() - start:.1f}", flush=True)
