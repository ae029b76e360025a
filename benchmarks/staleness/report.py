"""The study's table and its frontier."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.pictures import GRID, INK, PALE, dot, page, polyline, rule, text
from benchmarks.staleness.plan import LEVELS, STREAMS, TIMED, VARIANTS, WHOLE

Runs = dict[int, dict[str, Any]]
"""Results by seed."""

RESAMPLES = 10_000
LIMIT = 0.001
"""Most that AUC may fall and logloss rise."""


def report(out: Path) -> None:
    """Write table.md and frontier.svg of what is in `out`."""
    found = {stream: load(out / stream) for stream in STREAMS if (out / stream).is_dir()}
    timed = {stream: load(out / TIMED / stream) for stream in found}
    tables = "\n".join(table(stream, runs, timed[stream]) for stream, runs in found.items())
    (out / "table.md").write_text(tables, encoding="utf-8")
    (out / "frontier.svg").write_text(frontier(found, timed), encoding="utf-8")
    print(tables)


def load(folder: Path) -> dict[str, Runs]:
    """Results by variant and seed."""
    found: dict[str, Runs] = {}
    for variant in VARIANTS:
        stem = variant.name.replace(" ", "-").replace(",", "")
        paths = sorted(folder.glob(f"{stem}-[0-9]*.json"))
        runs = {
            int(path.stem.rpartition("-")[2]): json.loads(path.read_text())
            for path in paths
            if path.stem.rpartition("-")[0] == stem
        }
        if runs:
            found[variant.name] = runs
    return found


# Statistics ----------------------------------------------------------------------------------------------------------


def differences(runs: Runs, whole: Runs, key: str) -> NDArray[np.float64]:
    """Of the seeds that both have."""
    return np.array([runs[seed][key] - whole[seed][key] for seed in sorted(runs.keys() & whole.keys())])


def bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    """One-sided 95 % bootstrap bounds of the mean, low and high."""
    dice = np.random.default_rng(0)
    means = values[dice.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [5, 95])
    return float(low), float(high)


def over_control(found: dict[str, Runs], runs: Runs, key: str) -> NDArray[np.float64]:
    """What each seed's run has over the control at the same trained share: that lies between runs of the control."""
    ladder = [found[WHOLE], *(found[f"random {level}"] for level in LEVELS if f"random {level}" in found)]
    values = []
    for seed, run in sorted(runs.items()):
        steps = [level[seed] for level in ladder if seed in level]
        if len(steps) < 2:
            continue
        order = sorted(steps, key=lambda step: float(step["trained"]))
        shares, figures = [step["trained"] for step in order], [step[key] for step in order]
        values.append(run[key] - float(np.interp(run["trained"], shares, figures)))
    return np.array(values)


# Table ---------------------------------------------------------------------------------------------------------------


def table(stream: str, found: dict[str, Runs], timed: dict[str, Runs]) -> str:
    whole = found.get(WHOLE, {})
    lines = [
        f"### {stream}\n",
        f"{STREAMS[stream].about}; {len(whole)} seeds.\n",
        "| variant | seeds | trained | AUC | logloss | calibration | dAUC (worst, 95 %) | dlogloss (worst, 95 %) "
        "| AUC over random (least, 95 %) | logloss over random (most, 95 %) | time |",
        "|---" * 11 + "|",
    ]
    for variant in VARIANTS:
        runs = found.get(variant.name)
        if not runs:
            continue
        cells = [
            variant.name,
            str(len(runs)),
            *(
                f"{mean(runs, key):{form}}"
                for key, form in (("trained", ".3f"), ("auc", ".4f"), ("logloss", ".4f"), ("calibration", ".3f"))
            ),
        ]
        if variant.name == WHOLE or not whole:
            cells += ["", "", "", ""]
        else:
            cells += [_bound(differences(runs, whole, "auc"), 0), _bound(differences(runs, whole, "logloss"), 1)]
            cells += ["", ""] if not variant.control else [
                _bound(over_control(found, runs, "auc"), 0), _bound(over_control(found, runs, "logloss"), 1)]  # fmt: skip
        cells.append(f"{time_ratio(timed, variant.name):.2f}" if variant.name in timed and WHOLE in timed else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def time_ratio(timed: dict[str, Runs], variant: str) -> float:
    """Seconds of a variant's runs by those of the run of the same seed that skips nothing: the median."""
    runs, whole = timed[variant], timed[WHOLE]
    return float(np.median([runs[seed]["seconds"] / whole[seed]["seconds"] for seed in runs.keys() & whole.keys()]))


def mean(runs: Runs, key: str) -> float:
    return float(np.mean([run[key] for run in runs.values()]))


def _bound(values: NDArray[np.float64], side: int) -> str:
    return f"{1e3 * values.mean():+.2f}e-3 ({1e3 * bounds(values)[side]:+.2f}e-3)" if len(values) else ""


# Frontier ------------------------------------------------------------------------------------------------------------

LEFT, TOP, WIDTH, HEIGHT, GAP = 78, 110, 380, 230, 96
COLOURS = (
    "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#1b9e77",
    "#f4a582", "#c2a5cf", "#b22222", "#00876c", "#1f5fbf",
)  # fmt: skip


def frontier(found: dict[str, dict[str, Runs]], timed: dict[str, dict[str, Runs]]) -> str:
    """A row of charts for each stream: AUC and logloss lost and calibration against the share of samples trained; where
    seconds were taken, AUC lost against them."""
    parts = [
        text(16, 28, "What skipping costs: same seed, same order, nothing skipped = 0", size=17, weight="600"),
        text(
            16,
            48,
            "mean of the seeds, whiskers: one standard error; the line is the control, samples skipped at random",
            size=12,
            colour=PALE,
        ),
    ]
    shares = "share of the samples that are trained"
    measures: tuple[tuple[str, str, Callable[[float], float]], ...] = (
        ("auc", "AUC lost, thousandths", lambda d: -1e3 * d), ("logloss", "logloss added, thousandths", lambda d: 1e3 * d),
        ("calibration", "calibration moved, hundredths", lambda d: 1e2 * d),
    )  # fmt: skip
    y = float(TOP)
    for stream, runs in found.items():
        if WHOLE not in runs:
            continue
        parts.append(text(16, y - 26, stream, size=14, weight="600"))
        trained = {name: mean(runs[name], "trained") for name in runs}
        for number, (key, title, of) in enumerate(measures):
            parts += chart(runs, key, title, of, trained, shares, LEFT + number * (WIDTH + GAP), y)
        if WHOLE in timed[stream]:
            took = {name: time_ratio(timed[stream], name) for name in timed[stream]}
            left = LEFT + len(measures) * (WIDTH + GAP)
            parts += chart(runs, *measures[0], took, "time, of the run that skips nothing", left, y)
        y += HEIGHT + 110
    x = float(LEFT)
    names = [variant.name for variant in VARIANTS if variant.control]
    for name, colour in zip(names, COLOURS, strict=True):
        parts += [dot(x, y - 40, colour, 5), text(x + 10, y - 36, name, size=12)]
        x += 34 + 6.6 * len(name)
        if x > LEFT + 3 * WIDTH:
            x, y = float(LEFT), y + 22
    columns = len(measures) + any(timed.values())
    return page(LEFT + columns * (WIDTH + GAP) - GAP + 30, y, parts)


@dataclass(frozen=True)
class Scale:
    """From what a run took along and what it lost to a place on the page. Along falls from left to right."""

    left: float
    top: float
    most: float
    least: float
    floor: float
    ceiling: float

    def at(self, along: float, lost: float) -> tuple[float, float]:
        x = self.left + WIDTH * (self.most - along) / (self.most - self.least)
        return x, self.top + HEIGHT * (1 - (lost - self.floor) / (self.ceiling - self.floor))


def chart(
    found: dict[str, Runs],
    key: str,
    title: str,
    of: Callable[[float], float],
    along: dict[str, float],
    along_title: str,
    left: float,
    top: float,
) -> list[str]:
    """What the variants lost against what they took."""
    points = {}
    for variant in VARIANTS:
        if variant.name in found and variant.name in along and variant.name != WHOLE:
            lost = np.array([of(value) for value in differences(found[variant.name], found[WHOLE], key)])
            error = float(lost.std(ddof=1) / np.sqrt(len(lost))) if len(lost) > 1 else 0.0
            points[variant.name] = along[variant.name], float(lost.mean()), error
    scale = Scale(
        left,
        top,
        most=max(1.0, *(x for x, _, _ in points.values())),
        least=min(0.95, *(x for x, _, _ in points.values())) - 0.02,
        floor=min(-0.2, *(lost - error for _, lost, error in points.values())) * 1.2,
        ceiling=max(1.2, *(lost + error for _, lost, error in points.values())) * 1.1,
    )
    control = [(1.0, 0.0), *((points[name][:2]) for name in (f"random {level}" for level in LEVELS) if name in points)]
    parts = [*axes(scale, title, along_title, limited=key != "calibration")]
    parts.append(polyline((scale.at(*point) for point in sorted(control, reverse=True)), INK))
    colours = dict(zip([variant.name for variant in VARIANTS if variant.control], COLOURS, strict=True))
    for name, (x_value, lost_mean, error) in points.items():
        colour = colours.get(name, INK)
        size = 6 if name == "signal_to_noise, more" or name == "adaptive" else 4
        x, y = scale.at(x_value, lost_mean)
        upper, lower = (scale.at(x_value, lost_mean + part)[1] for part in (error, -error))
        parts += [rule(x, upper, x, lower, colour, width=1.5), dot(x, y, colour, size)]
    return parts


def axes(scale: Scale, title: str, along_title: str, limited: bool) -> list[str]:
    left, top, right = scale.left, scale.top, scale.left + WIDTH
    parts = [text(left, top - 8, title, size=12, colour=PALE)]
    height = scale.ceiling - scale.floor
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 1e9) if height / step <= 6)
    for tick in np.arange(np.ceil(scale.floor / step) * step, scale.ceiling, step):
        y = scale.at(1, float(tick))[1]
        parts += [rule(left, y, right, y, GRID), text(left - 8, y + 4, f"{tick or 0:g}", "end", 12, PALE)]
    if limited:
        y = scale.at(1, 1)[1]
        parts += [rule(left, y, right, y, "#b22222", dashed=True), text(right, y - 5, "0.001", "end", 11, "#b22222")]
    width = scale.most - scale.least
    step = next(step for step in (0.02, 0.05, 0.1, 0.25, 1e9) if width / step <= 7)
    for tick in np.arange(np.floor(scale.most / step + 1e-9) * step, scale.least, -step):
        parts.append(text(scale.at(float(tick), 0)[0], top + HEIGHT + 18, f"{tick:.0%}", "middle", 12, PALE))
    return [*parts, text(left + WIDTH / 2, top + HEIGHT + 38, along_title, "middle", 12, PALE)]
