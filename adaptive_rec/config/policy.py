"""What is fixed for a run about policies that arrange the stream. What may change while it trains is a knob."""

from __future__ import annotations

from pydantic import PositiveInt

from adaptive_rec.config.knobs import Bytes, Frozen, knob


class PolicyConfig(Frozen):
    sampling_ratio: float = knob(
        0.05, "ratio", "Share of the samples that fae and its kin count lookups of before the first step.", gt=0, le=1
    )
    small_table_bytes: Bytes = knob(
        1 << 20, "bytes", "Under fae, tables whose rows take less than this are hot as a whole.", ge=0
    )
    schedule_ratio: float = knob(
        0.5,
        "ratio",
        "Share of the cold, then of the hot samples of an epoch that fae trains before it switches; the most and the first.",
        gt=0,
        le=1,
    )
    schedule_floor_ratio: float = knob(
        0.01, "ratio", "The least that share comes down to: it is halved where the test loss rises.", gt=0, le=1
    )
    schedule_patience: PositiveInt = knob(
        4, "checks", "Checks in a row that must find the test loss lower for fae to double that share."
    )
    schedule_samples: PositiveInt = knob(8192, "samples", "Held-out samples by which fae checks its test loss.")
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
        "How far from target_skip_ratio the dropped share of hot samples may lie for its search to end.",
        ge=0,
        le=1,
    )
    search_sample_ratio: float = knob(
        0.01,
        "ratio",
        "Share of the hot samples not yet trained by which slipstream_released searches its threshold.",
        gt=0,
        le=1,
    )
    search_max_movement: float = knob(0.1, "movement", "The search is a bisection between 0 and this.", gt=0)
    search_steps: PositiveInt = knob(25, "steps", "Bisections after which it gives up and drops nothing.")
