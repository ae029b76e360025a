"""The streams, and what is compared on each. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

TUNED_ON = 11
"""Seed of the planted stream on which the settings of skipping were chosen; the study's seeds are others."""

DENSE_LR, EMBEDDING_LR = 0.01, 0.02
LARGER = 2
"""Factor of the larger batch; Adagrad's learning rates grow by its square root."""

NET = (
    "model.embedding_dim=16", "model.bottom_mlp=[512,256,64]", "model.top_mlp=[512,256]", "optimizer.dense=Adagrad",
    f"optimizer.dense_lr={DENSE_LR}", "optimizer.embedding=rowwise_adagrad", f"optimizer.embedding_lr={EMBEDDING_LR}",
    "run.steps=0", "run.device=cpu", "run.threads=1", "eval.count=10",
)  # fmt: skip
"""The dense part of DLRM on Criteo Kaggle, at full size."""

SETTLED = "slipstream-settled"
"""Skips what has settled by a fixed threshold, be it much or little, and keeps a share of it at random."""
LOOSE = "adaptive-loose"
"""`adaptive` with a limit that a stream of this length can prove: it drops what has settled, in every other block."""
SUBSAMPLE = ("knobs.action=subsample", "knobs.keep_probability=0.4", "knobs.probe_ratio=0.0625")
SKIPPING = ("knobs.action=drop", "knobs.target_skip_ratio=0.5", "knobs.probe_ratio=0.125")
"""What the policies `slipstream` and `random_skip` do: a wanted share of the popular samples is dropped."""
PLANTED = (
    "data.table_rows=[60000,40000,20000,10000,5000,2000]", "data.max_table_rows=2000000", "data.dense_features=13",
    "data.synthetic.samples=400000", "data.synthetic.test_samples=40000", "data.synthetic.head_ratio=0.0005",
    "data.synthetic.zipf_exponent=0.9", "data.synthetic.teacher_scale=2.0", "data.synthetic.popular_ratio=0.75",
    "knobs.hot_budget_bytes=100000", "knobs.reclassify_every=30",
)  # fmt: skip
"""75 % of the samples look up 69 rows, the others 137,000."""


@dataclass(frozen=True)
class Stream:
    about: str
    preset: str
    batch_size: int
    settings: tuple[str, ...]
    file: str = ""
    """In the folder of test data; empty: synthetic."""
    format: str = ""
    """What the file is prepared as; empty: it is read as it is."""
    newest: tuple[float, float] | None = None
    """Of a stream in order of time: the range that the control of fewer samples trains on. On others that control is the run
    that skips nothing, ended early: with constant learning rates both are the same."""


STREAMS = {
    "settled": Stream(
        "synthetic teacher, stationary; 75 % of 400 k samples look up 69 rows, the others 137,000", "synthetic", 1024, PLANTED
    ),
    "drifting": Stream(
        "as settled; every 2,000 samples a new row enters each table's popularity order at its top",
        "synthetic", 1024, (*PLANTED, "data.synthetic.drift_ranks=0.5"),
    ),
    "criteo": Stream(
        "Criteo Kaggle sample, 118 k samples, one pass", "criteo_sample", 256,
        ("data.ids=contiguous", "knobs.hot_budget_bytes=4600000", "knobs.reclassify_every=50"),
        "criteo_kaggle_sample_137k.tsv.zst",
    ),
    "globo": Stream(
        "Globo clicks in order of time with 3 negatives each, 396 k samples, the next 45 k held out", "synthetic", 1024,
        ("data.shuffle=false", "data.train_range=[0.6, 0.635]", "data.test_range=[0.635, 0.639]",
         "knobs.hot_budget_bytes=1000000", "knobs.reclassify_every=30"),
        "globo_clicks_2988181.csv.zst", "globo", newest=(0.6105, 0.635),
    ),
}  # fmt: skip

BASELINE = "hybrid"
POLICIES = (BASELINE, "slipstream", "random_skip", "adaptive")


def variants(stream: Stream) -> dict[str, tuple[str, ...]]:
    """Return what is compared with the baseline besides policies, as settings by name."""
    root = LARGER**0.5
    found = {
        SETTLED: (
            "knobs.policy=slipstream", "knobs.stale_threshold=2.5", "knobs.alpha=0.5", "knobs.min_probe_touches=1", *SUBSAMPLE,
        ),
        LOOSE: (
            "knobs.policy=adaptive", "knobs.guard_max_logloss_increase=0.05", "knobs.guard_ratio=0.1",
            "knobs.reclassify_every=12", "knobs.keep_probability=0.25", "knobs.alpha=0.5", "knobs.min_probe_touches=1",
        ),
        "random-subsample": ("knobs.policy=random_skip", "knobs.target_skip_ratio=0.45", *SUBSAMPLE),
        "larger-batch": (
            f"run.batch_size={LARGER * stream.batch_size}", f"optimizer.dense_lr={DENSE_LR * root:.4g}",
            f"optimizer.embedding_lr={EMBEDDING_LR * root:.4g}",
        ),
    }  # fmt: skip
    if stream.newest:
        found["newest-70"] = (f"data.train_range={list(stream.newest)}",)
    return found


def settings(stream: Stream) -> tuple[str, ...]:
    """Return the settings that all runs on a stream share."""
    return (*NET, f"run.batch_size={stream.batch_size}", *SKIPPING, *stream.settings)
