"""The study's tables and its frontier: AUC lost against processor time, for every stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.pictures import GRID, INK, PALE, dot, page, polyline, rule, text
from benchmarks.common.results import table_head
from benchmarks.skipping.plan import BASELINE, LOOSE, SETTLED, STREAMS

SLACK_AUC, BAR = 0.0005, 0.85
CONTROLS = {"slipstream": "random_skip", LOOSE: "random_skip", SETTLED: "random-subsample"}
"""What skips at random by the same action: a rule is compared with the line from the baseline through it, at the same share."""
HEADS = (
    "stream", "what", "seeds", "trained", "processor time", "wall clock", "dAUC", "dlogloss", "AUC over random, equal share",
    "AUC over fewer samples, equal time", "time to the AUC", "of hybrid's whole time",
)  # fmt: skip
COLOURS = {
    "slipstream": "#e6ab02", SETTLED: "#d95f02", "random_skip": "#24292f", "random-subsample": "#7570b3",
    "larger-batch": "#1b9e77", "newest-70": "#e7298a", "adaptive": "#a6cee3", LOOSE: "#1f78b4",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What one contestant did on one stream, each array over the seeds that it shares with the baseline."""

    trained: np.ndarray
    """Samples trained, of the baseline's; the other ratios are to the baseline's figure of the seed, too."""
    processor: np.ndarray
    wall: np.ndarray
    auc: np.ndarray
    """Differences, as those of the log loss."""
    logloss: np.ndarray
    over_random: np.ndarray
    over_fewer: np.ndarray
    to_target: np.ndarray
    """Of the baseline's processor time to the target; NaN where it was not reached."""
    to_target_of_whole: np.ndarray


def report(out: Path) -> str:
    """Write the table and the picture of what is in `out`, and return the table."""
    found = {name: load(out / name / "compare.json") for name in STREAMS if (out / name / "compare.json").exists()}
    lines = [table_head(list(HEADS)), *(row for name, results in found.items() for row in rows(name, results))]
    table = "\n".join([*lines, ""])
    (out / "skipping.md").write_text(table, encoding="utf-8")
    (out / "skipping.svg").write_text(picture(found), encoding="utf-8")
    return table


def load(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def by_seed(results: Mapping[str, Any], name: str) -> dict[int, dict[str, Any]]:
    return {run["seed"]: run for run in results["runs"] if run["policy"] == name}


def figures(results: Mapping[str, Any], name: str) -> Found | None:
    """Return a contestant's figures; None where it shares no finished seed with the baseline."""
    base, own = by_seed(results, BASELINE), by_seed(results, name)
    control = by_seed(results, CONTROLS.get(name, ""))
    seeds = sorted(base.keys() & own.keys())
    if not seeds:
        return None
    rows = []
    for seed in seeds:
        run, plain = own[seed], base[seed]
        random = np.nan
        if seed in control and control[seed]["samples_trained"] != plain["samples_trained"]:
            slope = (plain["auc"] - control[seed]["auc"]) / (plain["samples_trained"] - control[seed]["samples_trained"])
            random = plain["auc"] - slope * (plain["samples_trained"] - run["samples_trained"])
        line = [(each["processor_seconds"], each["auc"]) for each in plain["evaluations"]]
        fewer = np.interp(run["processor_seconds"], *zip(*line, strict=True))
        reached = run["processor_seconds_to_target"]
        reached = np.nan if reached is None else reached
        rows.append((
            run["samples_trained"] / plain["samples_trained"], run["processor_seconds"] / plain["processor_seconds"],
            run["seconds"] / plain["seconds"], run["auc"] - plain["auc"], run["logloss"] - plain["logloss"],
            run["auc"] - random, run["auc"] - fewer,
            reached / plain["processor_seconds_to_target"], reached / plain["processor_seconds"],
        ))  # fmt: skip
    return Found(*np.array(rows).T)


def contestants(results: Mapping[str, Any]) -> Iterator[tuple[str, Found]]:
    for name in results["policies"]:
        found = figures(results, name)
        if found:
            yield name, found


def rows(stream: str, results: Mapping[str, Any]) -> Iterator[str]:
    for name, found in contestants(results):
        plain = name == BASELINE
        cells = [
            stream, name, str(len(found.auc)), f"{found.trained.mean():.3f}", f"{found.processor.mean():.2f}",
            f"{found.wall.mean():.2f}", thousandths(found.auc), thousandths(found.logloss),
            thousandths(found.over_random) if name in CONTROLS else "",
            "" if plain else thousandths(found.over_fewer), times(found.to_target), times(found.to_target_of_whole),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def thousandths(values: np.ndarray) -> str:
    """A mean in thousandths, and its standard error."""
    known = values[~np.isnan(values)]
    if not len(known):
        return "–"
    error = f" ± {1e3 * known.std(ddof=1) / np.sqrt(len(known)):.1f}" if len(known) > 1 else ""
    return f"{1e3 * known.mean():+.1f}e-3{error}"


def times(ratios: np.ndarray) -> str:
    """The mean with the least and the most, or in how many seeds the AUC was reached."""
    reached = ratios[~np.isnan(ratios)]
    if len(reached) < len(ratios):
        return f"{len(reached)} of {len(ratios)} seeds" if len(reached) else "never"
    return f"{ratios.mean():.2f} ({ratios.min():.2f}–{ratios.max():.2f})"


# Picture -------------------------------------------------------------------------------------------------------------

LEFT, TOP, WIDTH, HEIGHT, GAP, COLUMNS = 76, 130, 340, 230, 90, 3
MOST = 4.0
"""Thousandths of AUC lost above which a dot stands at the upper edge."""


def picture(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A chart for each stream."""
    parts = [
        text(16, 28, "Where skipping pays: AUC lost against processor time, of the run that skips nothing", size=17,
             weight="600"),
        text(16, 48, "Down and to the right is better. Large dots: mean of the seeds with its standard error; small: the "
             "seeds (at the upper edge: more).", size=12, colour=PALE),
        text(16, 66, "Grey line: the run that skips nothing, on its way, which is the control of fewer samples. Dashed: 0.0005 "
             "of AUC, 0.85 of the time.", size=12, colour=PALE),
    ]  # fmt: skip
    for place, (name, results) in enumerate(found.items()):
        row, column = divmod(place, COLUMNS)
        parts += chart(name, results, LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + 90))
    height = TOP + -(-len(found) // COLUMNS) * (HEIGHT + 90)
    x = 16.0
    compared = {name for results in found.values() for name in results["policies"]}
    for name, colour in ((name, colour) for name, colour in COLOURS.items() if name in compared):
        parts += [dot(x + 5, height - 20, colour, 5), text(x + 15, height - 16, name, size=12)]
        x += 40 + 6.8 * len(name)
    return page(LEFT + min(COLUMNS, max(1, len(found))) * (WIDTH + GAP) - GAP + 40, height, parts)


def chart(name: str, results: Mapping[str, Any], left: float, top: float) -> list[str]:
    every = dict(contestants(results))
    if BASELINE not in every:
        return []
    others = {key: each for key, each in every.items() if key != BASELINE}
    lost = np.concatenate([-1e3 * each.auc for each in others.values()] or [np.zeros(1)])
    most, least = min(MOST, max(1.5, float(lost.max()) * 1.15)), min(-0.6, float(lost.min()) * 1.15)
    along = [float(value) for each in others.values() for value in each.processor]
    low, high = min([0.5, *along]) - 0.04, max([1.05, *along]) + 0.04

    def at(time: float, loss: float) -> tuple[float, float]:
        """Time falls from left to right, loss from bottom to top; more than `most` stands at the upper edge."""
        share = (min(loss, most) - least) / (most - least)
        return left + WIDTH * (high - time) / (high - low), top + HEIGHT * (1 - share)

    parts = [text(left - 40, top - 14, f"{name}: {len(every[BASELINE].auc)} seeds", size=13, weight="600")]
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 1e9) if (most - least) / step <= 7)
    for tick in np.arange(np.ceil(least / step) * step, most, step):
        y = at(high, float(tick))[1]
        parts += [rule(left, y, left + WIDTH, y, GRID), text(left - 8, y + 4, f"{tick or 0:g}", "end", 11, PALE)]
    for tick in np.arange(0.1, 3, 0.1 if high - low < 0.9 else 0.2):
        if low <= tick <= high:
            parts.append(text(at(float(tick), 0)[0], top + HEIGHT + 16, f"{tick:.1f}", "middle", 11, PALE))
    parts.append(
        text(left + WIDTH / 2, top + HEIGHT + 34, "processor time; vertical: AUC lost, thousandths", "middle", 11, PALE)
    )
    (x, _), (_, y) = at(BAR, 0), at(1, 1e3 * SLACK_AUC)
    parts += [
        rule(x, top, x, top + HEIGHT, "#b22222", dashed=True),
        rule(left, y, left + WIDTH, y, "#b22222", dashed=True),
    ]
    parts.append(
        polyline((at(*point) for point in on_its_way(results) if low <= point[0] and point[1] <= most), "#9aa4ad")
    )
    parts.append(dot(*at(1, 0), "#9aa4ad", 5.5))
    for key, each in others.items():
        colour = COLOURS.get(key, INK)
        losses, centre = -1e3 * each.auc, (float(each.processor.mean()), float(-1e3 * each.auc.mean()))
        parts += [dot(*at(float(a), float(b)), colour, 2) for a, b in zip(each.processor, losses, strict=True)]
        error = float(losses.std(ddof=1) / np.sqrt(len(losses))) if len(losses) > 1 else 0.0
        x, upper, lower = at(*centre)[0], at(centre[0], centre[1] - error)[1], at(centre[0], centre[1] + error)[1]
        parts += [rule(x, upper, x, lower, colour, width=1.5), dot(*at(*centre), colour, 5.5)]
    return parts


def on_its_way(results: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Mean time and loss of the baseline's evaluations, of its whole time and against its final AUC."""
    runs = list(by_seed(results, BASELINE).values())
    points = [
        [(each["processor_seconds"] / run["processor_seconds"], 1e3 * (run["auc"] - each["auc"])) for each in run["evaluations"]]
        for run in runs
    ]  # fmt: skip
    return [tuple(map(float, np.mean(point, axis=0))) for point in zip(*points, strict=False)]  # type: ignore[misc]
