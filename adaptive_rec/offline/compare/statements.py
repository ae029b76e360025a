"""Statements about a comparison: differences that are beyond noise, that are not, and that have too few seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_rec.offline.compare.measures import AUC, JUDGED, LOGLOSS, TO_TARGET, WALL_CLOCK, Measure
from adaptive_rec.offline.compare.results import BEYOND_NOISE
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS

Difference = Mapping[str, Any]

DISTURBED_RATIO = 1.25
"""Ratio of the baseline's slowest run to its fastest, above which other work disturbed the comparison."""
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

BEYOND = {"better", "worse"}
PERHAPS = {"maybe_better", "maybe_worse"}
LOSS = {"worse", "maybe_worse"}
"""Verdicts that count as a loss: a suspected loss needs less proof than a claimed gain."""


def verdict(measure: Measure, found: Difference | None) -> str:
    """Return the verdict on a difference.

    better or worse: beyond noise. maybe_better or maybe_worse: the interval excludes zero, but with so many policies this may be
    chance. none: the interval includes zero. same: equal in every seed. unknown: too few seeds.
    """
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
    return {policy: _line(found, spans) for policy, found in results["differences"].items() if found}


def _line(found: Mapping[str, Difference], spans: bool) -> str:
    judged = [
        (measure, found[measure.key], verdict(measure, found[measure.key]))
        for measure in JUDGED
        if measure.key in found
    ]
    parts = [in_words(measure, each) for measure, each, kind in judged if kind != "none"]
    quiet = [
        f"{measure.title} ({spanned(measure, each)})" if spans else measure.title
        for measure, each, kind in judged
        if kind == "none"
    ]
    said = "; ".join(parts)
    if quiet:
        said += f"{'. Not' if said else 'not'} beyond noise: {', '.join(quiet)}"
    return f"{said[:1].upper()}{said[1:]}."


def headline(results: Mapping[str, Any]) -> list[str]:
    """Return the most important statements."""
    seeds, differences = most_seeds(results), results["differences"]
    base = results["baseline"]
    if not any(differences.values()):
        return [f"Nothing is compared with {base} yet: no seed is finished under both."]
    if seeds < LEAST_SEEDS:
        return [
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}: no statement about noise. Differences are shown as they came out; "
            f"at least {LEAST_SEEDS} seeds are needed to distinguish them from it."
        ]
    few = [policy for policy in differences if paired_seeds(results, policy) < LEAST_SEEDS]
    left_out = [f"Too few seeds for a statement about {_listed(few)}."] if few else []
    rounding = _by_rounding_alone(results)
    return [_fastest(differences, base, rounding), *_quality(differences, base, rounding), *left_out]


def _by_rounding_alone(results: Mapping[str, Any]) -> set[str]:
    """Return the policies whose quality differs from the baseline's by rounding alone, so that a perhaps means nothing."""
    kinds = results["kinds"]
    return {name for name in kinds if kinds[name] == kinds[results["baseline"]] == "exact"}


def _fastest(differences: Mapping[str, Mapping[str, Difference]], base: str, rounding: set[str]) -> str:
    """Name the policies that take less time, separated by whether they may lose quality."""
    faster = sorted(
        (
            name
            for name, found in differences.items()
            if verdict(WALL_CLOCK, found.get("seconds")) == "better" and name not in BOUNDS
        ),
        key=lambda name: differences[name]["seconds"]["mean"],
    )
    paying = [name for name in faster if _losses(differences[name]) & ({"worse"} if name in rounding else LOSS)]
    sound = [name for name in faster if name not in paying]
    if sound:
        found = differences[sound[0]]
        span, auc = spanned(WALL_CLOCK, found["seconds"]), found.get("auc")
        kept = f"; its AUC lies {spanned(AUC, auc)} from {base}'s" if auc else ""
        gain = f"{-found['seconds']['mean']:.1%} less time than {base} ({span})"
        said = f"{sound[0]} takes {gain}, and no loss of quality was found{kept}."
        others = ", ".join(f"{name} ({signed(WALL_CLOCK, differences[name]['seconds']['mean'])})" for name in sound[1:])
        said += f" So do, by less: {others}." if others else ""
    else:
        said = f"No policy takes less time than {base} beyond noise without a loss of quality."
    return said + (f" Less time, but at a loss of quality or perhaps one: {_listed(paying)}." if paying else "")


def _losses(found: Mapping[str, Difference]) -> set[str]:
    return LOSS & {verdict(measure, found.get(measure.key)) for measure in (AUC, LOGLOSS)}


def _quality(differences: Mapping[str, Mapping[str, Difference]], base: str, rounding: set[str]) -> list[str]:
    by_verdict: dict[str, list[str]] = {}
    for name, found in differences.items():
        kind = verdict(AUC, found.get("auc"))
        if kind in BEYOND or name not in rounding:
            by_verdict.setdefault(kind, []).append(name)
    said = [
        f"AUC is {word} than {base}'s under {_listed(by_verdict[kind])}."
        for kind, word in (
            ("better", "higher"), ("maybe_better", "perhaps higher"), ("maybe_worse", "perhaps lower"), ("worse", "lower"),
        )
        if kind in by_verdict
    ]  # fmt: skip
    return said or [f"No policy's AUC differs from {base}'s beyond noise."]


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes that readers need to interpret the figures."""
    seeds = most_seeds(results)
    about = [
        "Wall clock is that of the training loop, reading and arranging of batches included. The start of the process "
        "(libraries, data files, tables) and the evaluations made for this comparison are left out; evaluations that a policy "
        "requests count. Start is the duration of the start.",
        f"The target of a run is the baseline's final AUC with the same seed, less {results['target_slack_auc']:g}. The time to "
        "it is read between evaluations in proportion.",
    ]
    for kind, meaning in KINDS.items():
        if named := [policy for policy in results["policies"] if results["kinds"][policy] == kind]:
            about.append(f"{_listed(named)}: {meaning}.")
    if bounds := [f"{policy} {BOUNDS[policy]}" for policy in results["policies"] if policy in BOUNDS]:
        about.append(f"No contenders, but bounds: {_listed(bounds)}.")
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
    """Return a note where equal work took the baseline very different times."""
    base = results["baseline"]
    seconds = [run["seconds"] for run in results["runs"] if run["policy"] == base]
    if not seconds or max(seconds) < DISTURBED_RATIO * min(seconds):
        return []
    span = f"{WALL_CLOCK.text(min(seconds))} to {WALL_CLOCK.text(max(seconds))}"
    return [f"{base} took {span} for the same work: something else used the machine, and times are not reliable."]


def paired_seeds(results: Mapping[str, Any], policy: str) -> int:
    """Return the number of seeds finished under both a policy and the baseline."""
    found = results["differences"].get(policy, {}).get(WALL_CLOCK.key)
    return found["count"] if found else 0


def most_seeds(results: Mapping[str, Any]) -> int:
    """Return the largest number of seeds that a policy shares with the baseline."""
    return max((paired_seeds(results, policy) for policy in results["differences"]), default=0)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def to_target(results: Mapping[str, Any], policy: str) -> str:
    """Return the mean time to the target, or the number of seeds that reached it."""
    over = results["over_seeds"][policy]
    if not over["targets"]:
        return "–"
    if over[TO_TARGET.key] is None:
        return f"{over['reached']} of {over['targets']}" if over["reached"] else "never"
    return TO_TARGET.text(over[TO_TARGET.key]["mean"])
