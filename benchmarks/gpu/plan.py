"""The cells of `bench-gpu` and of `bench-gpu-all`, and how the time is shared among them. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    name: str
    kind: str
    """correctness, ceilings, comparison, timeline or memory."""
    seconds: float
    """What it may take, its process's start included."""
    least_seconds: float = 20.0
    """With less left it is not begun."""
    shape: str = "kaggle"
    batch_size: int = 2048
    rule: str = "rowwise_adagrad"
    preloaded: bool = False
    rows_ratio: float = 0.1
    """Budget: the share of all rows that the device tier holds."""
    contestants: tuple[str, ...] = ()


ALL_POLICIES = (
    "plain", "hotline", "device_only", "hotline/never", "slipstream:freeze", "slipstream:subsample", "hybrid", "fbgemm",
)  # fmt: skip
"""The most important first: with too little time the last ones are left out."""

CACHED = ("hotline", "hotline/never", "slipstream:freeze", "slipstream:subsample", "fbgemm")
FEW = ("plain", "hotline", "device_only", "slipstream:freeze")
OPTIMIZERS = ("hotline+sgd", "hotline+rowwise_adagrad", "hotline+lazy_adam", "device_only+lazy_adam", "plain+lazy_adam")

CORRECTNESS = Cell("correctness", "correctness", 55, 10)
CEILINGS = Cell("ceilings", "ceilings", 15, 8)

QUICK = (
    CORRECTNESS,
    CEILINGS,
    Cell("kaggle-2048-10pc", "comparison", 65, 40, contestants=ALL_POLICIES),
    Cell("timeline", "timeline", 28, 15, contestants=("hotline", "hotline/never")),
    Cell("kaggle-2048-10pc-preloaded", "comparison", 45, 25, preloaded=True, contestants=ALL_POLICIES),
    Cell("kaggle-2048-10pc-rules", "comparison", 40, 25, contestants=OPTIMIZERS),
    Cell("mlperf-2048-10pc-preloaded", "comparison", 45, 30, shape="mlperf", preloaded=True, contestants=FEW),
    Cell("kaggle-16384-10pc", "comparison", 40, 25, batch_size=16384, contestants=FEW),
    Cell("memory", "memory", 22, 12, contestants=("slipstream:freeze",)),
    Cell("kaggle-2048-1pc", "comparison", 25, 18, rows_ratio=0.01, contestants=("device_only", *CACHED)),
    Cell("kaggle-2048-25pc", "comparison", 25, 18, rows_ratio=0.25, contestants=("device_only", *CACHED)),
    Cell("mlperf-16384-10pc-preloaded", "comparison", 45, 30, shape="mlperf", batch_size=16384, preloaded=True,
         contestants=("plain", "hotline", "device_only")),
)  # fmt: skip
QUICK_SECONDS = 465.0
"""`bench-gpu` ends before 8 minutes are over."""

MOST_STRETCH = 1.5
"""Time that earlier cells left over goes to the later ones, up to so many times their own."""


def share(cell: Cell, still_to_come: tuple[Cell, ...], left: float) -> float:
    """Seconds for a cell, of those left for it and all after it; 0 where that is too little to begin."""
    planned = cell.seconds + sum(later.seconds for later in still_to_come)
    seconds = min(left, cell.seconds * min(MOST_STRETCH, left / planned))
    return seconds if seconds >= min(cell.least_seconds, cell.seconds) else 0.0


def all_cells() -> tuple[Cell, ...]:
    """Every shape, batch size, budget, rule and way of loading; an hour and a half, to be taken up again at will."""
    cells = [replace(CORRECTNESS, seconds=240), replace(CEILINGS, seconds=30)]
    for shape in ("kaggle", "mlperf4m"):
        for batch_size in (2048, 16384):
            for rule in ("rowwise_adagrad", "lazy_adam"):
                for preloaded in (False, True):
                    for ratio in (0.10, 0.01, 0.25):
                        names = ALL_POLICIES if ratio == 0.10 else ("device_only", *CACHED)
                        cells.append(_cell(shape, batch_size, rule, preloaded, ratio, names))
        cells.append(
            Cell(
                f"{shape}-2048-10pc-rules",
                "comparison",
                120,
                shape=small_enough(shape, "lazy_adam"),
                preloaded=shape != "kaggle",
                contestants=OPTIMIZERS,
            )
        )
    timelines = ("hotline", "hotline/never", "slipstream:freeze", "device_only")
    cells += [
        Cell("timeline", "timeline", 60, contestants=timelines),
        Cell("timeline-16384", "timeline", 90, batch_size=16384, contestants=timelines),
        Cell("timeline-mlperf", "timeline", 120, shape="mlperf4m", preloaded=True, contestants=timelines),
        Cell("memory", "memory", 640, contestants=("slipstream:freeze",)),
    ]
    return tuple(cells)


def small_enough(shape: str, rule: str) -> str:
    """With two moments for each component, several runs at once fit host memory only where the tables are cut shorter."""
    return "mlperf" if shape == "mlperf4m" and rule == "lazy_adam" else shape


def _cell(shape: str, batch_size: int, rule: str, preloaded: bool, ratio: float, names: tuple[str, ...]) -> Cell:
    if shape != "kaggle":
        keep = ("device_only", "plain", "hotline") if rule == "lazy_adam" else FEW
        names = tuple(name for name in names if name in (*keep, "fbgemm"))
    ending = "-preloaded" if preloaded else ""
    return Cell(
        f"{shape}-{batch_size}-{100 * ratio:.0f}pc-{rule}{ending}", "comparison", 90,
        shape=small_enough(shape, rule), batch_size=batch_size,
        rule=rule, preloaded=preloaded, rows_ratio=ratio, contestants=names,
    )  # fmt: skip


def rehearsed(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The same cells on tiny shapes, a second each: whether everything runs, and no figure of anything."""
    small = []
    for cell in cells:
        shape = "tiny" if cell.shape == "kaggle" else "tiny_bags"
        batch_size = 64 if cell.batch_size == 2048 else 96
        small.append(replace(cell, seconds=1.0, least_seconds=0.0, shape=shape, batch_size=batch_size))
    return tuple(small)
