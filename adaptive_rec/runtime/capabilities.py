"""What goes together: one table of the pairs of features that a run cannot have, each with its rule and its reason.

A start, its dry run and its plan, changes of knobs, rules of the watchdog and a loop of the user's own ask it;
docs/limits.md prints it. To refuse a pair, add an entry to `REFUSALS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptive_rec.config.knobs import KnobError, Knobs
from adaptive_rec.config.run import DEVICE_ONLY_COLD_ROWS
from adaptive_rec.config.tree import Config
from adaptive_rec.errors import ConfigError
from adaptive_rec.kernels.update_rules import torch_titles
from adaptive_rec.policy import Policy
from adaptive_rec.units import exact_size

FEATURES = {
    "processes": "several processes",
    "gpu": "a GPU",
    "cpu": "a CPU",
    "own loop": "a loop of your own",
    "own gpu": "a loop of your own on a GPU",
    "own processes": "a loop of your own in several processes",
    "disk": "rows on a disk: `run.host_memory`",
    "raw": "raw ids: `data.ids=raw`",
    "rows": "ids that are rows",
    "follow": "`data.follow`",
    "keep evicted": "`data.keep_evicted`",
    "evict ratio": "`knobs.evict_ratio`",
    "evict after": "`knobs.evict_after`",
    "arranging": "policies that arrange the stream: `cdlrm`, `oracle`, `fae`, `fae_released`, `slipstream_released`",
    "reordering": "policies that reorder the stream: `fae`, `fae_released`, `slipstream_released`",
    "per table": "policies that treat each table apart: `xdl`",
    "skipping": "policies that skip work: `slipstream`, `adaptive`, `random_skip`",
    "implicit": "logs of positives alone: `data.implicit`",
    "order": '`data.order="time"`',
    "next window": '`eval.mode="next_window"`',
    "validation": '`eval.mode="validation"`',
    "train slice": "`eval.train_slice`",
    "rows of 16 bits": "`run.row_precision`",
    "float64": "`run.precision=float64`",
    "tf32": "`run.precision=tf32`",
    "transport": "`run.transport=bf16`",
    "compile": "`run.compile`",
    "onednn": "`run.linear=onednn`",
    "no float32": "`run.precision` other than float32",
    "classify": "`run.classify=device`",
    "cold rows": "`run.cold_rows=direct` or `in_place`",
    "every row": f"an optimizer that moves every row at each step ({torch_titles(every_row=True)})",
}
"""Names of features, each as docs/limits.md calls it."""

Features = Mapping[str, str]
"""The features that a run is to have, each with the value that an error shows."""


@dataclass(frozen=True)
class Refusal:
    """A pair of features that do not go together."""

    changed: str
    """The feature whose value the error shows."""
    beside: str
    rule: str
    """What the changed setting must be, as the error begins; the name of a feature in braces stands for its value."""
    reason: str
    hint: str = ""
    """What the error ends with, likewise."""
    knob: str = ""
    """The knob that the rule is about; for a knob the error is a `KnobError`."""
    in_config: bool = False
    """Whether the settings themselves refuse the pair, before there is a policy or a device."""
    wanted: bool = False
    """Whether users would expect that the pair works."""

    def error(self, features: Features) -> ConfigError:
        rule = f"{self.rule.format_map(features)}, got {features[self.changed]}{self.hint.format_map(features)}"
        if self.knob:
            return KnobError(f"knobs.{self.knob} {rule}", [(self.knob, rule)], faq="not-together")
        return ConfigError(rule, faq="not-together")


TOGETHER = "where several processes train together"
KEEPS_ORDER = "knobs.policy must keep the order of the stream"
NOT_ARRANGED = "knobs.policy must not arrange the stream, as hotline and slipstream do not,"
REORDERED = "the policy trains some samples before others, whatever their times"
RAW_ALONE = "only a raw id can lose its row"
OF_32_BITS = "tables must be of torch.float32 or torch.float64"
EVERY_ROW = "under {every row}, which moves every row at every step"
WAY_OUT = f"; {torch_titles(every_row=False)} without momentum and weight_decay move only the rows looked up"

REFUSALS = (
    *(Refusal(f"evict {name}", "reordering", "must be 0 under a policy that reorders the stream",
              "it reads the stream before it trains, so each id has its row for the whole stream",
              " under {reordering}; hotline, hybrid, slipstream and others that keep its order take it", f"evict_{name}")
      for name in ("ratio", "after")),
    Refusal("evict ratio", "rows", "must be 0 unless data.ids=raw", RAW_ALONE, knob="evict_ratio", in_config=True),
    Refusal("evict after", "rows", "must be 0 unless data.ids=raw", RAW_ALONE, knob="evict_after", in_config=True),
    Refusal("keep evicted", "rows", 'data.keep_evicted must be 0 unless data.ids = "raw"', RAW_ALONE, in_config=True),
    Refusal("follow", "rows", 'data.ids must be "raw" where data is followed', "ids to come are not known", in_config=True),
    Refusal("follow", "order", 'data.order must be "file" where data is followed', "rows are trained on as they come",
            in_config=True),
    Refusal("follow", "next window", 'eval.mode must be "held_out" where data is followed',
            "each sample is scored in its own step", in_config=True),
    Refusal("follow", "implicit", "data.follow must be false where rows are all positives", "items to come are not known",
            wanted=True),
    Refusal("next window", "implicit", 'eval.mode must be "held_out" where rows are all positives',
            "a window's positives would be ranked by the items of the whole training range, later ones among them"),
    Refusal("train slice", "implicit", "eval.train_slice must be false where rows are all positives",
            "what a user has chosen, which is not ranked, is that of the rows before the slice", wanted=True),
    Refusal("follow", "validation", 'eval.mode must be "held_out" where data is followed',
            "each sample is scored in its own step", in_config=True),
    Refusal("reordering", "next window", f'{KEEPS_ORDER} where eval.mode = "next_window"', REORDERED),
    Refusal("reordering", "order", f'{KEEPS_ORDER} where data.order = "time"', REORDERED),
    Refusal("arranging", "follow", f"{NOT_ARRANGED} where data is followed",
            "the policy reads ahead, a window of batches or all of them: training would stay behind the data by as much, or rows "
            "would be placed by what had come by chance, which no resume or replay repeats"),
    Refusal("classify", "processes", f"run.classify must be host {TOGETHER}", "the host makes the requests to owners"),
    Refusal("cold rows", "processes", f"run.cold_rows must be staged {TOGETHER}", "cold rows come from their owners"),
    Refusal("classify", "disk", "run.classify must be host where rows lie on a disk (run.host_memory)",
            "rows are read from the disk by the batch that the host has classified"),
    Refusal("cold rows", "disk", "run.cold_rows must be staged where rows lie on a disk (run.host_memory)",
            "a device cannot read a file"),
    Refusal("tf32", "cpu", "run.precision must not be tf32 on a CPU, which has no TF32", "a CPU has no TF32",
            "; take float32 or bf16"),
    Refusal("classify", "cpu", "run.classify must be host or auto on a CPU", "there is no device"),
    Refusal("cold rows", "cpu", "run.cold_rows must be auto or staged on a CPU", "a CPU reads rows where they lie"),
    Refusal("compile", "gpu", "run.compile must be false on a device, where the dense part is recorded instead",
            "a CUDA graph records the dense part instead"),
    Refusal("onednn", "gpu", "run.linear must be auto or torch on a device", "oneDNN is for CPUs"),
    Refusal("onednn", "compile", "run.linear must be auto or torch where run.compile is true",
            "the compiler calls no oneDNN layers of ours"),
    Refusal("onednn", "no float32", "run.linear must be auto or torch unless run.precision is float32",
            "its layers are of float32"),
    Refusal("transport", "float64", "run.transport must be exact where precision is float64",
            "float64 is for exact comparisons", in_config=True),
    Refusal("arranging", "own loop", "policy must leave the stream to the loop", "the stream is the loop's",
            "; it needs adaptive-rec train"),
    Refusal("per table", "own loop", "policy must leave tables and stream to the loop", "the tables are the model's",
            "; it needs adaptive-rec train"),
    Refusal("skipping", "own processes", f"policy must skip no work {TOGETHER} in a user's loop (hotline, hybrid, device_only)",
            "processes would have to agree on what is stale"),
    Refusal("skipping", "every row", f"policy must be exact (hotline, hybrid, device_only) {EVERY_ROW}",
            "a row that is left out would miss its movement", WAY_OUT),
    Refusal("every row", "raw", "ids must not be raw under an optimizer that moves every row at every step",
            "a row that an id gets later would have missed the steps before", WAY_OUT),
    Refusal("own gpu", "every row", f"device must be cpu {EVERY_ROW}", "every row would travel in every step", WAY_OUT),
    Refusal("rows of 16 bits", "every row", f"{OF_32_BITS} {EVERY_ROW}",
            "many steps smaller than the rounding of 16 bits would be lost", WAY_OUT),
)  # fmt: skip
"""Pairs that are refused; all others go together."""


def refusals(features: Features) -> list[Refusal]:
    """Return the pairs among some features that do not go together."""
    return [each for each in REFUSALS if each.changed in features and each.beside in features]


def go_together(features: Features) -> bool:
    """Return whether all of some features go together."""
    return not refusals(features)


def check_features(features: Features) -> None:
    """Raise ConfigError for the first pair of features that do not go together."""
    for each in refusals(features):
        raise each.error(features)


def features_of_run(
    config: Config, policy: Policy, on_device: bool, several: bool = False, trains: bool = True
) -> dict[str, str]:
    """Return the features of a run. `several`: processes train together; `trains`: False for a run that is only scored, which
    needs no GPU even where it was trained on one."""
    run, data = config.run, config.data
    found = {
        "processes": "several" if several else "",
        "gpu": "cuda" if on_device else "",
        "cpu": "cpu" if trains and not on_device else "",
        "disk": exact_size(run.host_memory) if run.host_memory else "",
        "follow": "true" if data.follow else "",
        "keep evicted": str(data.keep_evicted or ""),
        "implicit": "data.implicit" if data.implicit.negatives else "",
        "order": "time" if data.order == "time" else "",
        "next window": "next_window" if config.eval.mode == "next_window" else "",
        "validation": "validation" if config.eval.validates else "",
        "train slice": "true" if config.eval.trains_slice else "",
        "rows of 16 bits": run.row_precision if run.row_precision != "float32" else "",
        "float64": "float64" if run.precision == "float64" else "",
        "tf32": "tf32" if run.precision == "tf32" else "",
        "no float32": run.precision if run.precision != "float32" else "",
        "transport": run.transport if run.transport != "exact" else "",
        "compile": "true" if run.compile else "",
        "onednn": "onednn" if run.linear == "onednn" else "",
        "classify": "device" if run.classify == "device" else "",
        "cold rows": run.cold_rows if run.cold_rows in DEVICE_ONLY_COLD_ROWS else "",
    }
    return {name: value for name, value in found.items() if value} | of_knobs(config.knobs, policy, data.ids == "raw")


def of_knobs(knobs: Knobs, policy: Policy, raw: bool) -> dict[str, str]:
    """Return the features that may change while a run trains, and whether ids are `raw`."""
    found = {
        "raw" if raw else "rows": "raw" if raw else "rows",
        "evict ratio": str(knobs.evict_ratio or ""),
        "evict after": str(knobs.evict_after or ""),
        "arranging": policy.name if policy.arranges_stream else "",
        "reordering": policy.name if policy.reorders_stream else "",
        "per table": policy.name if policy.request_per_table else "",
    }
    return {name: value for name, value in found.items() if value}


def of_loop(
    knobs: Knobs, policy: Policy, raw: bool, several: bool, every_row: str, dtype: str = "", device: str = "cpu", disk: str = ""
) -> dict[str, str]:
    """Return the features of a loop of the user's own. `every_row`: the name of an optimizer that moves every row, or empty;
    `dtype`: type of its tables; `device`: that of looked-up vectors; `disk`: memory of its rows where they lie on a disk."""
    found = {
        "own loop": "yes",
        "own gpu": "" if device == "cpu" else device,
        "own processes": "several" if several else "",
        "rows of 16 bits": dtype if dtype in ("torch.float16", "torch.bfloat16") else "",
        "every row": every_row,
        "disk": disk,
        "skipping": "" if policy.exact else policy.name,
    }
    return {name: value for name, value in found.items() if value} | of_knobs(knobs, policy, raw)


def as_markdown() -> str:
    """Return the table of docs/limits.md, in Markdown."""
    lines = ["| With | there is no | because |", "|---|---|---|"]
    for beside, name in FEATURES.items():
        for each in REFUSALS:
            if each.beside == beside:
                wanted = " (to come)" if each.wanted else ""
                lines.append(f"| {name} | {FEATURES[each.changed]} | {each.reason}{wanted} |")
                name = ""
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
