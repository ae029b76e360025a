"""Statements about a comparison: differences that are beyond noise, that are not, and that have too few seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_rec.offline.compare.measures import TO_TARGET, WALL_CLOCK, Measure, in_windows, judged_in
from adaptive_rec.offline.compare.results import BEYOND_NOISE, scatters
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS

Difference = Mapping[str, Any]

BOUNDS = {
    "device_only": "holds all rows on the device, whatever the budget",
    "oracle": "chooses rows by what is still to come",
}
"""Policies that show what is possible at best; no headline calls them the winner."""
KINDS = {
    "exact": "plain steps on the same batches, so that quality differs by rounding alone",
    "reordered": "every sample trained, in an order of its own",
    "skips": "samples or row updates skipped",
}
"""Variants are listed one by one."""

BEYOND = {"better", "worse"}
PERHAPS = {"maybe_better", "maybe_worse"}
LOSS = {"worse", "maybe_worse"}
"""Verdicts that count as a loss: a suspected loss needs less proof than a claimed gain."""


def verdict(measure: Measure, found: Difference | None) -> str:
    """Return the verdict on a difference.

    better or worse: beyond noise. maybe_better or maybe_worse: the interval excludes zero, but with so many policies this may be
    chance. none: the interval includes zero. same: equal in every seed. scattered: times that are not compared. unknown: too few
    seeds.
    """
    if found is not None and found["scattered"]:
        return "scattered"
    if found is None or found["beyond_noise"] is None:
        return "unknown"
    if found["mean"] == found["low"] == found["high"] == 0:
        return "same"
    side = "better" if (found["mean"] < 0) == (measure.better == "low") else "worse"
    if found["beyond_noise"]:
        return side
    return f"maybe_{side}" if found["low"] > 0 or found["high"] < 0 else "none"


def signed(measure: Measure, value: float) -> str:
    """Return a difference with its sign."""
    text = f"{abs(value):.1%}" if measure.as_share else f"{abs(value):.4f}"
    return f"{'−' if value < 0 else '+'}{text}"


def change(measure: Measure, found: Difference | None) -> str:
    """Return a difference with its sign, and a question mark where it is only perhaps beyond noise."""
    if found is None:
        return ""
    return signed(measure, found["mean"]) + ("?" if verdict(measure, found) in PERHAPS else "")


def spanned(measure: Measure, found: Difference) -> str:
    """Return the interval of a difference; empty where there are too few seeds."""
    return "" if found["low"] is None else f"{signed(measure, found['low'])} to {signed(measure, found['high'])}"


def in_words(measure: Measure, found: Difference) -> str:
    """Return a difference in words, followed by its interval."""
    size = signed(measure, found["mean"])[1:]
    kind = verdict(measure, found)
    if kind == "same":
        return f"{measure.title} the same in every seed"
    if not float(size.rstrip("%")) and kind not in BEYOND:
        return f"{measure.title} the same to {'a tenth of a percent' if measure.as_share else 'four places'}"
    said = f"{measure.title} {'perhaps ' if kind in PERHAPS else ''}{size} {measure.noun[found['mean'] > 0]}"
    return said if kind == "unknown" else f"{said} ({spanned(measure, found)})"


def statements(results: Mapping[str, Any], spans: bool = True) -> dict[str, str]:
    """Return a statement about each policy that was compared with the baseline, by its name.

    `spans`: give intervals also for differences that are not beyond noise.
    """
    measures = judged_in(results["runs"])
    return {policy: _line(found, measures, spans) for policy, found in results["differences"].items() if found}


def _line(found: Mapping[str, Difference], measures: Sequence[Measure], spans: bool) -> str:
    judged = [
        (measure, found[measure.key], verdict(measure, found[measure.key]))
        for measure in measures
        if measure.key in found
    ]
    parts = [in_words(measure, each) for measure, each, kind in judged if kind not in ("none", "scattered")]
    quiet = [
        f"{measure.title} ({spanned(measure, each)})" if spans else measure.title
        for measure, each, kind in judged
        if kind == "none"
    ]
    said = "; ".join(parts)
    if quiet:
        said += f"{'. Not' if said else 'not'} beyond noise: {', '.join(quiet)}"
    if any(kind == "scattered" for _, _, kind in judged):
        said += f"{'. Times' if said else 'times'} scatter and are not compared"
    return f"{said[:1].upper()}{said[1:]}."


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes that readers need to interpret the figures."""
    seeds = most_seeds(results)
    about = [
        "Wall clock is that of the training loop, reading and arranging of batches included. The start of the process "
        "(libraries, data files, tables) and the evaluations made for this comparison are left out; evaluations that a policy "
        "requests count. Start is the duration of the start. Processor time is that of all threads during the loop; "
        "other work on the machine changes it far less.",
        "Each evaluation is of the next window of the stream, before it is trained on; AUC, log loss and calibration without "
        "more words are those of the last one. A window's AUC says as much of the window as of the model, so no time to an AUC "
        "is given: compare policies in the same windows."
        if in_windows(results)
        else f"The target of a run is the baseline's final AUC with the same seed, less {results['target_slack_auc']:g}. The "
        "time to it is read between evaluations in proportion.",
    ]
    for kind, meaning in KINDS.items():
        if named := [policy for policy in results["policies"] if results["kinds"][policy] == kind]:
            about.append(f"{names_in_a_row(named)}: {meaning}.")
    about += [f"{name}: {settings}." for name, settings in results["variants"].items()]
    if bounds := [f"{policy} {BOUNDS[policy]}" for policy in results["policies"] if policy in BOUNDS]:
        about.append(f"No contenders, but bounds: {names_in_a_row(bounds)}.")
    if seeds >= LEAST_SEEDS:
        about.append(
            f"Intervals are Student's t at 95 % over {seeds} seeds, differences are paired by seed. A difference is beyond noise "
            f"where p < {BEYOND_NOISE:g} after Holm's adjustment for the number of policies; perhaps one, where its interval "
            "excludes zero but p does not stay below that. Seeds vary initialisation, data order and sampling, not the held-out "
            "samples: there is no statement about other data."
        )
    about += [*uneven(results), *disturbed(results)]
    if results["states_of_the_code"] > 1:
        about.append("The sources changed between the runs: they come from more than one state of the code.")
    return about


def uneven(results: Mapping[str, Any]) -> list[str]:
    """Return a note where policies have different numbers of finished runs."""
    counts = {policy: over["runs"] for policy, over in results["over_seeds"].items()}
    most = max(counts.values())
    fewer = [f"{policy} {runs} of {most}" for policy, runs in counts.items() if runs < most]
    if not fewer:
        return []
    return [
        f"Not all have the same seeds ({', '.join(fewer)}): means are over what there is, differences over shared seeds."
    ]


def disturbed(results: Mapping[str, Any]) -> list[str]:
    """Return a note where runs of the same policy took very different times."""
    spans = []
    for policy in results["policies"]:
        seconds = [run["seconds"] for run in results["runs"] if run["policy"] == policy]
        if scatters(results["runs"], policy, WALL_CLOCK.key):
            spans.append(f"{policy} took {WALL_CLOCK.text(min(seconds))} to {WALL_CLOCK.text(max(seconds))}")
    if not spans:
        return []
    every = scatters(results["runs"], results["baseline"], WALL_CLOCK.key)
    compared = "no wall clocks are compared" if every else "their wall clocks are not compared"
    return [f"{'; '.join(spans)} for the same work: something else used the machine, and {compared}."]


def paired_seeds(results: Mapping[str, Any], policy: str) -> int:
    """Return the number of seeds finished under both a policy and the baseline."""
    found = results["differences"].get(policy, {}).get(WALL_CLOCK.key)
    return found["count"] if found else 0


def most_seeds(results: Mapping[str, Any]) -> int:
    """Return the largest number of seeds that a policy shares with the baseline."""
    return max((paired_seeds(results, policy) for policy in results["differences"]), default=0)


def names_in_a_row(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def to_target(results: Mapping[str, Any], policy: str, measure: Measure = TO_TARGET) -> str:
    """Return the mean time to the target, or the number of seeds that reached it."""
    over = results["over_seeds"][policy]
    if over[measure.key] is not None:
        return measure.text(over[measure.key]["mean"])
    if not over["targets"] or over["reached"] == over["targets"]:
        return "–"
    return f"{over['reached']} of {over['targets']}" if over["reached"] else "never"
