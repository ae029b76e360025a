"""The fixed settings of policies that arrange the stream. Settings that may change while a run trains are knobs."""

from __future__ import annotations

from pydantic import PositiveInt

from adaptive_rec.config.knobs import Bytes, Frozen, knob


class PolicyConfig(Frozen):
    sampling_ratio: float = knob(
        0.05, "ratio", "Share of the samples whose lookups fae and its variants count before the first step.", gt=0, le=1
    )
    small_table_bytes: Bytes = knob(
        1 << 20, "bytes", "Under fae, tables whose rows take less than this are hot as a whole.", ge=0
    )
    schedule_ratio: float = knob(
        0.5,
        "ratio",
        "Share of an epoch's cold, then of its hot samples that fae trains before it switches; its start and upper limit.",
        gt=0,
        le=1,
    )
    schedule_floor_ratio: float = knob(
        0.01, "ratio", "Lower limit of that share, which is halved whenever the test loss rises.", gt=0, le=1
    )
    schedule_patience: PositiveInt = knob(
        4, "checks", "Checks in a row that must find the test loss lower for fae to double that share."
    )
    schedule_samples: PositiveInt = knob(8192, "samples", "Held-out samples on which fae measures its test loss.")
    trial_steps: PositiveInt = knob(
        80,
        "steps",
        "Steps of skipping in the shortest trial of adaptive; trials of 2, 4 ... 32 times as many follow.",
        ge=8,
        le=100_000,
    )
    window_ratio: float = knob(
        0.015,
        "ratio",
        "Share of an epoch's hot batches over which slipstream_released measures movement, before it drops samples.",
        gt=0,
        le=1,
    )
    stale_lookups_ratio: float = knob(
        1.0,
        "ratio",
        "Share of a hot sample's lookups that must be stale for slipstream_released to drop it.",
        gt=0,
        le=1,
    )
    drop_tolerance_ratio: float = knob(
        0.08,
        "ratio",
        "How far from target_skip_ratio the dropped share of hot samples may lie for the search of its threshold to end.",
        ge=0,
        le=1,
    )
    search_sample_ratio: float = knob(
        0.01,
        "ratio",
        "Share of the untrained hot samples on which slipstream_released searches its threshold.",
        gt=0,
        le=1,
    )
    search_max_movement: float = knob(0.1, "movement", "Upper end of that search, a bisection that starts at 0.", gt=0)
    search_steps: PositiveInt = knob(25, "steps", "Bisections after which that search gives up and nothing is dropped.")
