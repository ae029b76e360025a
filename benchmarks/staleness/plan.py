"""The streams and the variants of the study. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace

SIXTH = 6 / 7

SMALL_NET = (
    "model.embedding_dim=8", "model.bottom_mlp=[16]", "model.top_mlp=[32]", "run.batch_size=2048", "knobs.report_every=200",
)  # fmt: skip
TEACHER = (
    "data.table_rows=[1500000,400000,100000,20000,2000]", "data.max_table_rows=2000000", "data.dense_features=4",
    "data.synthetic.samples=2500000", "data.synthetic.test_samples=200000", "data.synthetic.popular_ratio=0.7",
    "data.synthetic.head_ratio=0.003", "data.synthetic.zipf_exponent=1.05", "data.synthetic.teacher_scale=1.5",
    "knobs.hot_budget_bytes=520000", *SMALL_NET,
)  # fmt: skip
"""2 M rows, of which about 6,000 are hot; a hot row is looked up 1,500 times on average."""


@dataclass(frozen=True)
class Stream:
    about: str
    settings: tuple[str, ...]
    file: str = ""
    """Data it needs, in the folder of test data."""
    looser: tuple[float, float] = (0.01, 0.3)
    """Limit and guard_ratio at which `adaptive` can skip within the stream's length."""


STREAMS = {
    "stationary": Stream("synthetic teacher, 2 M rows, 2.5 M samples, hot rows looked up 1,500 times on average", TEACHER),
    "drifting": Stream(
        "the same; every 50,000 samples a new row enters each table's popularity order at its top",
        (*TEACHER, "data.synthetic.drift_ranks=0.02"),
    ),
    "criteo": Stream(
        "Criteo sample, 118 k samples, one pass",
        (
            "data.ids=contiguous", f"data.train_range=[0.0, {SIXTH}]", f"data.test_range=[{SIXTH}, 1.0]",
            "model.embedding_dim=16", "model.bottom_mlp=[64]", "model.top_mlp=[64]", "run.batch_size=256",
            "knobs.hot_budget_bytes=4600000",
        ),
        "criteo_kaggle_sample_137k.tsv.zst",
    ),
    "globo": Stream(
        "Globo clicks in time order with 3 negatives each: 1.9 M samples of 11.3 M, the next 226 k held out",
        ("data.shuffle=false", "data.train_range=[0.6, 0.77]", "data.test_range=[0.77, 0.79]", *SMALL_NET,
         "knobs.hot_budget_bytes=1000000"),
        "globo",
    ),
}  # fmt: skip

SUBSAMPLE = ("knobs.action=subsample", "knobs.keep_probability=0.42")
TARGET = "knobs.target_skip_ratio=0.3"
MORE = ("knobs.target_skip_ratio=0.45", "knobs.keep_probability=0.38")
NO_FLOOR = ("knobs.min_probe_touches=1", "knobs.min_touch_ratio=0")
RULES = ("max_abs", "relative_l2", "per_touch", "step_length", "popularity", "net_over_path", "signal_to_noise")
LEVELS = (0.2, 0.4)
"""Shares of the popular samples that the control skips: a rule is compared with the control at the share it really skipped."""

WHOLE = "nothing skipped"
TIMED = "timed"
"""Folder of the runs that were made for their seconds."""


@dataclass(frozen=True)
class Variant:
    name: str
    settings: tuple[str, ...]
    control: str = ""
    """The control that it is compared with: variants of this name with a level behind it."""


def _rule(rule: str) -> Variant:
    return Variant(rule, ("knobs.policy=slipstream", f"knobs.stale_metric={rule}", *SUBSAMPLE, TARGET), "random")


VARIANTS = (
    Variant(WHOLE, ("knobs.policy=hotline",)),
    *(
        Variant(f"random {level}", ("knobs.policy=random_skip", *SUBSAMPLE, f"knobs.target_skip_ratio={level}"))
        for level in LEVELS
    ),
    *map(_rule, RULES),
    *(
        Variant(f"{rule}, no floor", (*_rule(rule).settings, *NO_FLOOR), "random")
        for rule in ("max_abs", "signal_to_noise")
    ),
    Variant(
        "max_abs, dropped",
        ("knobs.policy=slipstream", "knobs.stale_metric=max_abs", "knobs.action=drop", TARGET, *NO_FLOOR),
        "random",
    ),
    Variant("signal_to_noise, more", (*_rule("signal_to_noise").settings[:-1], *MORE), "random"),
    Variant("adaptive", ("knobs.policy=adaptive", "knobs.stale_metric=signal_to_noise", *SUBSAMPLE), "random"),
)  # fmt: skip

PROMISE = "promise"
"""Folder of the runs that ask whether `adaptive` keeps its promise."""

LOG = (
    "data.shuffle=false", "data.train_range=[0.0, 0.9]", "data.test_range=[0.9, 1.0]", *SMALL_NET[:-2],
    "knobs.report_every=200",
)  # fmt: skip
PLANTED = (*LOG, "run.batch_size=512", "knobs.hot_budget_bytes=1000000", "knobs.reclassify_every=50")
SHORT = (*LOG, "run.batch_size=256", "knobs.hot_budget_bytes=500000", "knobs.reclassify_every=10")
FEW = (0.03, 0.5)

PROMISE_STREAMS = {
    **{
        name: replace(stream, settings=(*stream.settings, "knobs.reclassify_every=20"))
        for name, stream in STREAMS.items()
    },
    "criteo": replace(STREAMS["criteo"], settings=(*STREAMS["criteo"].settings, "knobs.reclassify_every=10"), looser=FEW),
    "movietweetings": Stream("MovieTweetings in time order, 127 k samples", SHORT, "movietweetings", FEW),
    "taobao": Stream(
        "Taobao behaviour of two hours, in time order, TBSM",
        (*LOG[:3], "model.name=tbsm", "model.embedding_dim=8", "model.bottom_mlp=[]", "model.top_mlp=[15,15]",
         "model.attention_mlp=[15,15]", "model.final_mlp=[20]", *SHORT[-4:]),
        "taobao", FEW,
    ),
    "sessions": Stream("planted log, 40 % of a day's items are new", PLANTED, "sessions", (0.02, 0.3)),
    "sessions-long": Stream("planted log, 10 % of a day's items are new", PLANTED, "sessions-long"),
    "jump": Stream("planted log, all items have another appeal after 70 % of it", PLANTED, "jump"),
    "slow-drift": Stream("planted log, each item's appeal walks at random from day to day", PLANTED, "slow-drift"),
    "rate-shift": Stream("planted log, more clicks in its second half", PLANTED, "rate-shift"),
    "rare-rows": Stream("planted log, 400,000 items and 100,000 visitors, most met a few times", PLANTED, "rare-rows"),
}  # fmt: skip
"""Where the promise is judged. A planted log must be prepared (`planted.prepare` does it, with pyarrow)."""

GUARDED = ("knobs.policy=adaptive", "knobs.stale_metric=signal_to_noise", *SUBSAMPLE)
HARSH = ("knobs.stale_threshold=1e9", "knobs.alpha=0.5", "knobs.keep_probability=0.3")
HALF = (0.005, 0.5)
"""Another limit and guard_ratio, at which the longer streams can skip."""
PROMISE_VARIANTS = {
    WHOLE: (*GUARDED, "knobs.guard_max_logloss_increase=0"),
    "defaults": GUARDED,
    "harsh": (*GUARDED, *HARSH),
    "harsh, lower limit": (*GUARDED, *HARSH),
    "harsh, no guard": ("knobs.policy=slipstream", *GUARDED[1:], *HARSH),
}
"""Harsh skips popular samples whose rows were touched often enough, be they settled or not: the guard alone must hold it."""
