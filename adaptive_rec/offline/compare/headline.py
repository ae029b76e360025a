"""The most important statements about a comparison: time to the baseline's AUC, who takes less time, and which loss of quality
the seeds exclude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptive_rec.offline.compare.measures import AUC, LOGLOSS, PROCESSOR, TARGETS, WALL_CLOCK, Measure
from adaptive_rec.offline.compare.results import scatters
from adaptive_rec.offline.compare.statements import (
    BOUNDS,
    LOSS,
    Difference,
    most_seeds,
    names_in_a_row,
    paired_seeds,
    spanned,
    verdict,
)
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS

SMALL_LOSS = 0.001
"""Loss of AUC or log loss that seeds must exclude, at 95 %, before quality counts as kept."""

Differences = Mapping[str, Mapping[str, Difference]]


def headline(results: Mapping[str, Any]) -> list[str]:
    """Return the most important statements."""
    seeds, differences, base = most_seeds(results), results["differences"], results["baseline"]
    if not any(differences.values()):
        return [f"Nothing is compared with {base} yet: no seed is finished under both."]
    clock = chosen_clock(results)
    if seeds < LEAST_SEEDS:
        return [
            *_to_auc(results, clock),
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}: no statement about noise. Differences are shown as they came out; "
            f"at least {LEAST_SEEDS} seeds are needed to distinguish them from it.",
        ]
    few = [policy for policy in differences if paired_seeds(results, policy) < LEAST_SEEDS]
    left_out = [f"Too few seeds for a statement about {names_in_a_row(few)}."] if few else []
    judged = {policy: found for policy, found in differences.items() if policy not in few}
    rounding = _by_rounding_alone(results)
    return [*_to_auc(results, clock), *_time(results, clock, judged, rounding), *_quality(judged, base, rounding), *left_out]


def _by_rounding_alone(results: Mapping[str, Any]) -> set[str]:
    """Return the policies whose quality differs from the baseline's by rounding alone, so that a perhaps means nothing."""
    kinds = results["kinds"]
    return {name for name in kinds if kinds[name] == kinds[results["baseline"]] == "exact"}


def chosen_clock(results: Mapping[str, Any]) -> Measure:
    """Return the clock that statements go by: the wall clock, or processor time where other work disturbed only the former."""
    runs, policies = results["runs"], results["policies"]
    disturbed = any(scatters(runs, policy, WALL_CLOCK.key) for policy in policies)
    steady = all(run[PROCESSOR.key] is not None for run in runs) and not scatters(runs, results["baseline"], PROCESSOR.key)
    return PROCESSOR if disturbed and steady else WALL_CLOCK


def _to_auc(results: Mapping[str, Any], clock: Measure) -> list[str]:
    """Return in which part of the baseline's time each policy reaches the baseline's final AUC, or in how many seeds it does."""
    base, over = results["baseline"], results["over_seeds"]
    to_target = next(measure for measure in TARGETS if measure.clock == clock.key)
    times, shares, never, scattered = list[tuple[float, str]](), list[str](), list[str](), list[str]()
    for name, found in results["differences"].items():
        reached, targets, each = over[name]["reached"], over[name]["targets"], found.get(to_target.key)
        if name in BOUNDS or not targets:
            continue
        if not reached:
            never.append(name)
        elif reached < targets:
            shares.append(f"{name} reached it in {reached} of {targets} seeds")
        elif each is None or each["scattered"]:
            scattered.append(name)
        else:
            times.append((each["mean"], f"{name} {1 + each['mean']:.2f}{_ratios(each, verdict(to_target, each))}"))
    said = [text for _, text in sorted(times)] + shares
    said += [f"{names_in_a_row(never)} never reached it"] if never else []
    cause = f"as {base}'s runs" if scatters(results["runs"], base, clock.key) else "whose runs"
    said += [f"no statement about {names_in_a_row(scattered)}, {cause} took very different times"] if scattered else []
    what = "Processor time" if clock is PROCESSOR else "Time"
    share = f", as a share of {base}'s" if times else ""
    return [f"{what} to {base}'s final AUC less {results['target_slack_auc']:g}{share}: {'; '.join(said)}."] if said else []


def _ratios(found: Difference, kind: str) -> str:
    """Return the interval of a ratio of times, and how sure it is."""
    if found["low"] is None:
        return ""
    sure = {"none": ", not beyond noise", "maybe_better": ", perhaps noise", "maybe_worse": ", perhaps noise"}.get(kind, "")
    return f" ({1 + found['low']:.2f} to {1 + found['high']:.2f}{sure})"


def _time(results: Mapping[str, Any], clock: Measure, differences: Differences, rounding: set[str]) -> list[str]:
    """Name the policies that take less time, separated by what is known of their quality."""
    base = results["baseline"]
    if scatters(results["runs"], base, clock.key):
        return [f"No statement about time: {base}'s runs took very different times for the same work."]
    kinds = {name: verdict(clock, found.get(clock.key)) for name, found in differences.items()}
    faster = sorted(
        (name for name, kind in kinds.items() if kind == "better" and name not in BOUNDS),
        key=lambda name: differences[name][clock.key]["mean"],
    )
    scattered = [name for name, kind in kinds.items() if kind == "scattered"]
    left_out = [f"No statement about the time of {names_in_a_row(scattered)}, whose runs differ too much."] if scattered else []
    if faster:
        return [*(_gain(name, differences[name], base, clock, name in rounding) for name in faster), *left_out]
    others = "No other policy" if scattered else "No policy"
    what = "processor time" if clock is PROCESSOR else "time"
    nothing = [f"{others} takes less {what} than {base} beyond noise."] if len(scattered) < len(differences) else []
    return [*nothing, *left_out]


def _gain(name: str, found: Mapping[str, Difference], base: str, clock: Measure, by_rounding: bool) -> str:
    """Return a policy's gain in time, with its price."""
    saved, what = found[clock.key], "processor time" if clock is PROCESSOR else "time"
    gain = f"{name} takes {-saved['mean']:.1%} less {what} than {base} ({spanned(clock, saved)})"
    lost = _losses(found)
    if by_rounding and "worse" not in lost:
        return f"{gain}, and its quality differs by rounding alone."
    if lost:
        return f"{gain}, but {'loses' if 'worse' in lost else 'perhaps loses'} quality."
    return f"{gain}; {excluded(found)}."


def _losses(found: Mapping[str, Difference]) -> set[str]:
    return LOSS & {verdict(measure, found.get(measure.key)) for measure in (AUC, LOGLOSS)}


def excluded(found: Mapping[str, Difference]) -> str:
    """Return which loss of quality the intervals exclude, or that there are too few seeds to exclude one of some size."""
    bounds, seeds = [], 0
    for measure, what in ((AUC, "a loss of {:.4f} of AUC"), (LOGLOSS, "a rise of the log loss by {:.4f}")):
        each = found.get(measure.key)
        if each is not None and each["low"] is not None:
            bounds.append((max(0.0, -each["low"] if measure is AUC else each["high"]), what))
            seeds = each["count"]
    if not bounds:
        return "quality was not scored"
    if all(bound == 0 for bound, _ in bounds):
        return "no loss of quality"
    large = [what.format(bound) for bound, what in bounds if bound > SMALL_LOSS]
    if large:
        return f"{seeds} seeds are too few to exclude {' or '.join(large)}"
    return f"more than {' and '.join(what.format(bound) for bound, what in bounds)} is excluded"


def _quality(differences: Differences, base: str, rounding: set[str]) -> list[str]:
    """Return what is known of each policy's quality, policies with the same verdict together where it is a difference."""
    by_verdict = dict[str, list[str]]()
    for name, found in differences.items():
        kind = verdict(AUC, found.get("auc"))
        if kind in ("better", "worse") or (kind != "none" and name not in rounding):
            by_verdict.setdefault(kind, []).append(name)
    words = {"better": "higher", "maybe_better": "perhaps higher", "maybe_worse": "perhaps lower", "worse": "lower"}
    said = [
        f"AUC is {word} than {base}'s under {names_in_a_row(by_verdict[kind])}."
        for kind, word in words.items()
        if kind in by_verdict
    ]
    raised = [
        name
        for name, found in differences.items()
        if name not in by_verdict.get("worse", ()) and verdict(LOGLOSS, found.get("logloss")) == "worse"
    ]
    said += [f"Log loss is higher than {base}'s under {names_in_a_row(raised)}."] if raised else []
    for name, found in differences.items():
        if name not in rounding and verdict(AUC, found.get("auc")) == "none":
            said.append(f"{name}: AUC {_seeds_lower(found['auc'])}; {excluded(found)}.")
    return said or [f"No policy's quality differs from {base}'s by more than rounding."]


def _seeds_lower(found: Difference) -> str:
    lower, seeds = found["lower"], found["count"]
    where = "every seed" if lower == seeds else f"{lower} of {seeds} seeds"
    return f"lower in {where} ({spanned(AUC, found)} from the baseline's)"
