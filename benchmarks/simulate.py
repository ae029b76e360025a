"""What the simulator says against what runs do: hot-lookup ratios, and the order of policies by the time of a step.

All policies train in one process, ten steps of each in turn from the first to the last, with skipping off; a round is all of
that, and the machine is measured before the first one. The process keeps to one core and counts the processor's time, so
that others on the machine disturb little. Rounds that are there already are not made again. Predicted and measured order are
compared by Kendall's tau-b over all pairs of policies, and one by one over those whose measured difference is beyond noise: where
0 is not in the 95 % t interval of the rounds' paired differences.

    python -m benchmarks.simulate criteo_sample --data criteo_sample.tsv.zst --rounds 5 --out simulate-criteo
    python -m benchmarks.simulate synthetic --rounds 5 --out simulate-synthetic
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.offline.compare.statistics import t_quantile
from adaptive_rec.offline.forecast.calibrate import calibrated
from adaptive_rec.offline.forecast.calibrate_rows import Clock
from adaptive_rec.offline.forecast.hardware import read_hardware, to_text
from adaptive_rec.offline.forecast.simulation import simulate
from adaptive_rec.policy.find import BUILT_IN
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.session import Report
from benchmarks.common.results import bar, bar_rows, say, write

CLOCK = time.process_time
"""On one core the processor's time is what the clock would show were nobody else at work: threads beside the step are in it."""
BLOCK_STEPS = 10
WARM_STEPS = 20
RATIO_BAR = 0.001
LEFT_OUT = ("device_only",)
"""On a CPU its tier is a copy of the tables and no tier: what it takes there says nothing."""


def main() -> None:
    args = parsed()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    Clock.now = staticmethod(CLOCK)
    args.out.mkdir(parents=True, exist_ok=True)
    policies = args.policies.split(",")
    config = configured(args)
    machine = args.out / "machine.toml"
    if not machine.exists():
        say("calibrating")
        machine.write_text(to_text(calibrated(config, args.config, lambda *_: None)), encoding="utf-8")
    measured = rounds(args, config, policies)
    made = simulate(config, None, policies, [args.budget], read_hardware(machine), None, lambda *_: None)
    report = compared(policies, {one["policy"]: one for one in made["results"]}, measured)
    write(args.out / "result.json", report)
    text = "\n".join([*table(report), "", *bar_rows(report["bars"]), "", *pairs_told(report)])
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    say(text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("config", help="preset or TOML file")
    add("--data", help="what train --data takes")
    add("--policies", default=",".join(name for name in BUILT_IN if name not in LEFT_OUT))
    add("--budget", default="1MiB")
    add("--steps", type=int, default=0)
    add("--rounds", type=int, default=5)
    add("--set", action="append", default=[], metavar="KEY=VALUE")
    add("--out", type=Path, required=True)
    return parser.parse_args()


def configured(args: argparse.Namespace) -> Config:
    """Skipping off, a report for each block of steps, nothing scored but what a policy asks for."""
    settings = [
        "knobs.target_skip_ratio=0",
        f"run.steps={args.steps}",
        "run.device=cpu",
        f"knobs.report_every={BLOCK_STEPS}",
    ]
    settings += [f"data.source={json.dumps(args.data)}"] if args.data else []
    return load_config(args.config, {}, [*settings, *args.set, f"knobs.hot_budget_bytes={args.budget}"])


class Turns:
    """A run that makes a block of steps when it is its turn."""

    def __init__(self, config: Config, source: Source, name: str) -> None:
        config = config.model_copy(update={"knobs": config.knobs.changed({"policy": name})})
        self.runtime = assemble(config, source=source)
        self._reports: Iterator[Report] = self.runtime.run()
        self.seconds = 0.0
        self.over = False

    def turn(self) -> None:
        started = CLOCK()
        self.over = not any(isinstance(report, Snapshot) for report in self._reports)
        self.seconds += CLOCK() - started

    def result(self) -> dict[str, float]:
        counters = self.runtime.tally.counters
        return {
            "step_seconds": self.seconds / counters.steps,
            "hot_lookup_ratio": counters.lookups_hot / counters.lookups,
        }


def one_round(config: Config, policies: Sequence[str]) -> dict[str, dict[str, float]]:
    """All policies from their first step to their last, in turns."""
    source = open_source(config)
    runs = {name: Turns(config, source, name) for name in policies}
    while going := [run for run in runs.values() if not run.over]:
        for run in going:
            run.turn()
    return {name: run.result() for name, run in runs.items()}


def rounds(args: argparse.Namespace, config: Config, policies: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """Seconds of a mean step and share of hot lookups of each policy, round by round."""
    kept = args.out / "rounds.json"
    done: list[dict[str, dict[str, float]]] = json.loads(kept.read_text())["rounds"] if kept.exists() else []
    if len(done) < args.rounds:
        one_round(config.model_copy(update={"run": config.run.model_copy(update={"steps": WARM_STEPS})}), policies)
    for number in range(len(done), args.rounds):
        turn = number % len(policies)
        done.append(one_round(config, [*policies[turn:], *policies[:turn]]))
        write(kept, {"rounds": done})
        told = ", ".join(f"{name} {1e3 * done[-1][name]['step_seconds']:.2f}" for name in policies)
        say(f"round {number + 1} of {args.rounds}, ms a step: {told}")
    return {name: [made[name] for made in done] for name in policies}


# Comparing -----------------------------------------------------------------------------------------------------------


def compared(policies: Sequence[str], predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for name in policies:
        steps = [1e3 * each["step_seconds"] for each in measured[name]]
        rows.append(
            {
                "policy": name,
                "predicted_ms": 1e3 * predicted[name]["predicted_step_seconds"],
                "measured_ms": float(np.mean(steps)),
                "rounds_ms": steps,
                "simulated_hot": predicted[name]["hot_lookup_ratio"],
                "real_hot": measured[name][0]["hot_lookup_ratio"],
            }
        )
    every = [pair(one, other) for one, other in itertools.combinations(rows, 2)]
    sure = [each for each in every if each["beyond_noise"]]
    agree = sum(each["agrees"] for each in sure) / len(sure) if sure else 1.0
    furthest = max(abs(row["simulated_hot"] - row["real_hot"]) for row in rows)
    tau = kendall([row["predicted_ms"] for row in rows], [row["measured_ms"] for row in rows])
    bars = [
        bar("largest difference of a hot-lookup ratio", furthest, RATIO_BAR, at_least=False),
        bar("pairs beyond noise in the predicted order", agree, 1.0, at_least=True),
    ]
    return {"policies": rows, "pairs": every, "kendall_tau": tau, "bars": bars}


def pair(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Whether the prediction orders two policies as the measurement does, and whether that is more than noise."""
    differences = np.subtract(one["rounds_ms"], other["rounds_ms"])
    low, high = interval(differences)
    predicted = one["predicted_ms"] - other["predicted_ms"]
    return {
        "policies": [one["policy"], other["policy"]],
        "predicted_ms": predicted,
        "measured_ms": float(differences.mean()),
        "interval_ms": [low, high],
        "beyond_noise": bool(low > 0 or high < 0),
        "agrees": bool(predicted * differences.mean() > 0),
    }


def interval(differences: Any) -> tuple[float, float]:
    """The 95 % t interval of a mean; everything where there is one round only."""
    freedom = len(differences) - 1
    if freedom < 1:
        return -np.inf, np.inf
    half = t_quantile(0.975, freedom) * differences.std(ddof=1) / np.sqrt(len(differences))
    return float(differences.mean() - half), float(differences.mean() + half)


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b: 1 where the orders are the same, -1 where they are opposite; ties are taken off."""
    signs = [
        (np.sign(a[0] - b[0]), np.sign(a[1] - b[1])) for a, b in itertools.combinations(zip(one, other, strict=True), 2)
    ]
    untied = np.prod([sum(bool(sign[side]) for sign in signs) for side in (0, 1)])
    return float(sum(a * b for a, b in signs) / np.sqrt(untied)) if untied else 0.0


def table(report: dict[str, Any]) -> list[str]:
    lines = [
        "| policy | predicted ms | measured ms | rounds | hot, simulated | hot, real |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(report["policies"], key=lambda row: row["measured_ms"]):
        rounds_ms = f"{min(row['rounds_ms']):.2f}-{max(row['rounds_ms']):.2f}"
        shares = f"{row['simulated_hot']:.4%} | {row['real_hot']:.4%}"
        lines.append(
            f"| {row['policy']} | {row['predicted_ms']:.2f} | {row['measured_ms']:.2f} | {rounds_ms} | {shares} |"
        )
    return lines


def pairs_told(report: dict[str, Any]) -> list[str]:
    sure = [each for each in report["pairs"] if each["beyond_noise"]]
    wrong = [each for each in sure if not each["agrees"]]
    told = (
        f"{len(sure)} of {len(report['pairs'])} pairs differ beyond noise; {len(sure) - len(wrong)} are predicted so."
    )
    lines = [f"Kendall's tau-b over all pairs: {report['kendall_tau']:.2f}. {told}"]
    for each in wrong:
        low, high = each["interval_ms"]
        lines.append(
            f"- {' minus '.join(each['policies'])}: measured {each['measured_ms']:.2f} ms ({low:.2f} to {high:.2f}), "
            f"predicted {each['predicted_ms']:.2f} ms"
        )
    return lines


if __name__ == "__main__":
    main()
