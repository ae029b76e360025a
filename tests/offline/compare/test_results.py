"""What is said of runs: true to their figures, and no more than noise permits."""

from __future__ import annotations

import json
import re
from statistics import fmean
from typing import Any

import pytest

from adaptive_rec.offline.compare.compare_page import compare_page
from adaptive_rec.offline.compare.compare_plots import between, mean_curve
from adaptive_rec.offline.compare.headline import headline
from adaptive_rec.offline.compare.measures import AUC, TO_TARGET, WALL_CLOCK, seconds_to
from adaptive_rec.offline.compare.statements import in_words, statements, verdict
from adaptive_rec.offline.compare.tables import (
    QUALITY_HEADS,
    WORK_HEADS,
    markdown,
    quality_rows,
    ranked_heads,
    ranked_rows,
    work_rows,
)
from tests.offline.compare.conftest import collected, curve, made_up


def test_the_time_to_an_auc_is_read_between_evaluations() -> None:
    rising = curve((1.0, 0.6), (2.0, 0.7), (3.0, 0.68), (4.0, 0.8))
    assert seconds_to(0.65, rising) == pytest.approx(1.5)
    assert seconds_to(0.69, rising) == pytest.approx(1.9)  # the first time counts
    assert seconds_to(0.5, rising) == 1.0
    assert seconds_to(0.81, rising) is None
    assert seconds_to(0.5, []) is None


def test_only_differences_beyond_noise_are_stated(four_policies: dict[str, Any]) -> None:
    found = four_policies["differences"]
    assert verdict(WALL_CLOCK, found["quick"]["seconds"]) == "better"
    assert verdict(AUC, found["quick"]["auc"]) == "none"
    assert verdict(AUC, found["poor"]["auc"]) == "worse"
    assert {verdict(measure, found["like"][measure.key]) for measure in (WALL_CLOCK, AUC)} == {"none"}
    to_auc, poor, quick, lower, *others = headline(four_policies)
    assert to_auc == (
        "Time to hybrid's final AUC less 0.0005, as a share of hybrid's: quick 0.80 (0.80 to 0.80); "
        "like 1.00 (0.91 to 1.10, not beyond noise); poor never reached it."
    )
    assert poor.startswith("poor takes 40.0% less time than hybrid (")
    assert poor.endswith(", but loses quality.")
    assert quick.startswith("quick takes 20.0% less time than hybrid (")
    assert quick.endswith("more than a loss of 0.0002 of AUC and a rise of the log loss by 0.0002 is excluded.")
    assert lower == "AUC is lower than hybrid's under poor."
    assert [line.partition(":")[0] for line in others] == ["quick", "like"]
    assert "; 3 seeds are too few to exclude a loss of 0.00" in others[1]
    assert in_words(AUC, found["poor"]["auc"]).startswith("AUC 0.0200 lower (−0.02")


def test_a_loss_that_is_likely_keeps_a_policy_from_winning() -> None:
    """Among many policies a lower AUC in every seed may not be beyond noise; that is no proof that nothing was lost."""
    noise = {1: -0.010, 2: 0.012, 3: -0.004}
    names = ["hybrid", *(f"like{n}" for n in range(9)), "doubtful"]
    runs = []
    for seed, shift in noise.items():
        runs += [
            made_up(name, seed, 100 + seed, 0.7 + shift + 1e-4 * ((n + seed) % 3 - 1)) for n, name in enumerate(names)
        ]
        runs[-1] = made_up("doubtful", seed, 80 + seed, 0.6979 + shift + 0.0004 * seed)
    base = {run["seed"]: run for run in runs if run["policy"] == "hybrid"}
    for run in runs:
        run["auc"] = run["auc"] if run["policy"] == "doubtful" else base[run["seed"]]["auc"]
        run["logloss"] = 0.4
    found = collected(runs, names)
    lower = found["differences"]["doubtful"]["auc"]
    assert lower["high"] < 0
    assert not lower["beyond_noise"]
    assert verdict(AUC, lower) == "maybe_worse"
    _, first, second, *_ = headline(found)
    assert first.startswith("doubtful takes")
    assert first.endswith("but perhaps loses quality.")
    assert second == "AUC is perhaps lower than hybrid's under doubtful."
    exact = headline(collected(runs, names, exact=names))  # what exact policies differ by is rounding
    assert exact[1].startswith("doubtful takes")
    assert exact[1].endswith("its quality differs by rounding alone.")
    assert exact[2] == "No policy's quality differs from hybrid's by more than rounding."


def test_a_loss_that_three_seeds_cannot_exclude_is_named() -> None:
    """Three seeds all worse, with an interval down to -.0087 that includes zero: nothing is known to be kept."""
    lost = {1: -0.0075, 2: -0.0035, 3: -0.0032}
    runs = [made_up("hybrid", seed, 100 + seed, 0.7) for seed in lost]
    runs += [made_up("skips", seed, 80 + seed, 0.7 + loss) for seed, loss in lost.items()]
    found = collected(runs, ["hybrid", "skips"])
    auc = found["differences"]["skips"]["auc"]
    assert auc["low"] < -0.008
    assert auc["high"] > 0
    never, first, second = headline(found)
    assert never == "Time to hybrid's final AUC less 0.0005: skips never reached it."
    few = f"3 seeds are too few to exclude a loss of {-auc['low']:.4f} of AUC or a rise of the log loss by"
    assert first.startswith("skips takes 19.6% less time than hybrid")
    assert few in first
    assert second.startswith("skips: AUC lower in every seed (−0.0")
    assert few in second
    for text in (compare_page(found), markdown(found)):
        assert few in text
        assert "no loss" not in text.lower()


def test_a_log_loss_that_rose_beyond_noise_is_said_where_auc_did_not_fall() -> None:
    """Or the reader learns only that three seeds are too few to exclude what they prove."""
    runs = [made_up("hybrid", seed, 100, 0.7) | {"logloss": 0.5} for seed in (1, 2, 3)]
    for seed, fell in ((1, -0.010), (2, 0.004), (3, 0.001)):
        runs.append(made_up("skips", seed, 100, 0.7 + fell) | {"logloss": 0.51 + 0.0001 * seed})
    assert "Log loss is higher than hybrid's under skips." in headline(collected(runs, ["hybrid", "skips"]))


@pytest.mark.parametrize("scattered", ["hybrid", "quick"])
def test_times_that_scatter_are_not_compared(scattered: str) -> None:
    """Although each run of quick takes less time than its pair."""
    runs = []
    for seed in (1, 2, 3):
        slower = {scattered: 1.3 if seed == 2 else 1.0}
        runs.append(made_up("hybrid", seed, 100 * slower.get("hybrid", 1.0), 0.7))
        runs.append(made_up("quick", seed, 60 * slower.get("quick", 1.0) + seed, 0.7))
    found = collected(runs, ["hybrid", "quick"])
    assert {verdict(m, found["differences"]["quick"][m.key]) for m in (TO_TARGET, WALL_CLOCK)} == {"scattered"}
    cause = {"hybrid": "as hybrid's runs", "quick": "whose runs"}[scattered]
    assert headline(found)[0] == (
        f"Time to hybrid's final AUC less 0.0005: no statement about quick, {cause} took very different times."
    )
    assert headline(found)[1].startswith("No statement about ")
    assert "*" not in dict((row[0], row[2]) for row in quality_rows(found))["quick"]
    for text in (compare_page(found), markdown(found)):
        assert f"{scattered} took" in text
        assert "Times scatter and are not compared." in text
        assert "less time than" not in text


def test_processor_time_is_stated_where_only_wall_clocks_scatter() -> None:
    runs = []
    for seed in (1, 2, 3):
        for name, took in (("hybrid", 50), ("quick", 40)):
            run = made_up(name, seed, (4.0 if seed == 2 else 1.0) * took + seed, 0.7)
            run["processor_seconds"] = took + 0.1 * seed
            for n, line in enumerate(run["evaluations"], start=1):
                line["processor_seconds"] = run["processor_seconds"] * n / 2
            runs.append(run)
    to_auc, faster, *_ = headline(collected(runs, ["hybrid", "quick"]))
    assert to_auc == "Processor time to hybrid's final AUC less 0.0005, as a share of hybrid's: quick 0.80 (0.80 to 0.80)."
    assert faster.startswith("quick takes 19.9% less processor time than hybrid (−2")


def test_a_busy_machine_is_noted(four_policies: dict[str, Any]) -> None:
    assert "something else used the machine" not in compare_page(four_policies)
    runs = [made_up(name, seed, 10 + 4 * (seed == 2), 0.7) for name in ("hybrid", "quick") for seed in (1, 2, 3)]
    found = collected(runs, ["hybrid", "quick"])
    for text in (compare_page(found), markdown(found)):
        spans = "hybrid took 10.0 s to 14.0 s; quick took 10.0 s to 14.0 s for the same work"
        assert f"{spans}: something else used the machine" in text


def test_bounds_are_never_called_winners() -> None:
    runs = [made_up(name, s, at + s, 0.7) for name, at in (("hybrid", 90), ("oracle", 50)) for s in (1, 2, 3)]
    found = collected(runs, ["hybrid", "oracle"])
    assert verdict(WALL_CLOCK, found["differences"]["oracle"]["seconds"]) == "better"
    assert headline(found)[0] == "No policy takes less time than hybrid beyond noise."  # nor is a time to an AUC stated
    assert "No contenders, but bounds: oracle chooses rows by what is still to come." in markdown(found)


def test_a_target_that_is_missed_is_no_time(four_policies: dict[str, Any]) -> None:
    over = four_policies["over_seeds"]
    assert over["poor"]["reached"] == 0
    assert over["poor"]["seconds_to_target"] is None
    assert over["hybrid"]["reached"] == over["quick"]["reached"] == 3
    assert "seconds_to_target" not in four_policies["differences"]["poor"]
    rows = {row[0]: row for row in quality_rows(four_policies)}
    assert rows["poor"][1] == "never"


def test_a_target_that_is_reached_in_some_seeds_has_no_mean() -> None:
    """A mean over those that got there would speak for those that did not."""
    runs = [made_up("hybrid", seed, 10, 0.7) for seed in (1, 2, 3)]
    runs += [made_up("quick", seed, 8, 0.71 if seed == 1 else 0.6) for seed in (1, 2, 3)]
    found = collected(runs, ["hybrid", "quick"])
    over = found["over_seeds"]["quick"]
    assert (over["reached"], over["targets"], over["seconds_to_target"]) == (1, 3, None)
    assert {row[0]: row[1] for row in quality_rows(found)}["quick"] == "1 of 3"
    assert "Not reached in every seed: quick (1 of 3)." in compare_page(found)


def test_two_seeds_are_shown_without_a_statement() -> None:
    runs = [made_up(policy, seed, 10.0 * len(policy) + seed, 0.7) for policy in ("hybrid", "quick") for seed in (1, 2)]
    found = collected(runs, ["hybrid", "quick"], 2)
    first, second = headline(found)
    assert first == "Time to hybrid's final AUC less 0.0005, as a share of hybrid's: quick 0.84."
    assert second.startswith("2 seeds: no statement about noise.")
    assert verdict(WALL_CLOCK, found["differences"]["quick"]["seconds"]) == "unknown"
    assert "beyond noise" not in markdown(found)


def test_seeds_that_failed_under_one_are_left_out_of_its_pairs(four_policies: dict[str, Any]) -> None:
    runs = [run for run in four_policies["runs"] if (run["policy"], run["seed"]) != ("quick", 2)]
    lost = {
        "policy": "quick",
        "seed": 2,
        "order": 6,
        "directory": "runs/x",
        "why": "x",
        "seconds": 1.0,
        "last_lines": [],
    }
    found = collected(runs, four_policies["policies"], failed=[lost])
    assert found["differences"]["quick"]["seconds"]["count"] == 2
    assert "Too few seeds for a statement about quick." in headline(found)
    assert "quick 2 of 3" in markdown(found)


def test_a_seed_that_is_under_way_does_not_count_yet(four_policies: dict[str, Any]) -> None:
    """Or the means of those that are through with it would be of other seeds than those of the others."""
    runs = [run for run in four_policies["runs"] if (run["policy"], run["seed"]) not in {("quick", 3), ("poor", 3)}]
    found = collected(runs, four_policies["policies"])
    assert {over["runs"] for over in found["over_seeds"].values()} == {2}
    assert [run["seed"] for run in found["runs"] if not run["counted"]] == [3, 3]
    assert "Not counted yet, as other policies have still to run: seed 3." in compare_page(found)
    alone = collected([run for run in runs if run["seed"] == 3], four_policies["policies"])
    assert all(run["counted"] for run in alone["runs"])  # where no seed is whole, what there is


def test_a_seed_that_failed_under_all_hides_no_run() -> None:
    """Or every run would wait for a seed that holds nothing, and the page have no figure to draw."""
    lost = {"seed": 1, "order": 1, "directory": "runs/x", "why": "x", "seconds": 1.0, "last_lines": []}
    failed = [{**lost, "policy": policy} for policy in ("hybrid", "quick")]
    found = collected([made_up("quick", 2, 80.0, 0.7)], ["hybrid", "quick"], 2, failed=failed)
    assert found["over_seeds"]["quick"]["runs"] == 1
    assert "Where the wall clock went" in compare_page(found)


def test_a_comparison_without_runs_says_so() -> None:
    found = collected([], ["hybrid", "quick"])
    assert headline(found) == ["Nothing is compared with hybrid yet: no seed is finished under both."]
    assert "No run is finished yet." in compare_page(found)
    assert markdown(found).startswith("# 2 policies on synthetic")


def test_metrics_that_rank_are_judged_and_shown_as_auc_is() -> None:
    runs = []
    for seed, noise in ((1, 0.001), (2, -0.002), (3, 0.0015)):
        for policy, value in (("hybrid", 0.5), ("skips", 0.4)):
            ranked = {"gauc": value + noise + 0.0001 * seed * (policy == "skips"), "recall@20": None if seed == 3 else 0.25}
            runs.append(made_up(policy, seed, 100, 0.7) | {"ranked": list(ranked), **ranked})
    found = collected(runs, ["hybrid", "skips"])
    assert found["differences"]["skips"]["gauc"]["beyond_noise"]
    assert "recall@20" not in found["differences"]["skips"], "a run lacks it"
    assert "; grouped AUC 0.0998 lower (" in statements(found)["skips"]
    heads, rows = ranked_heads(found), list(ranked_rows(found))
    assert heads == ("policy", "grouped AUC>", "recall@20>")
    assert rows[1][1].startswith("0.4004 ")
    assert rows[1][1].endswith("*")
    page, text = compare_page(found), markdown(found)
    assert page.count("grouped AUC") > 3
    assert "| grouped AUC | recall@20 |" in text
    assert ranked_heads(collected([made_up("hybrid", 1, 9, 0.7)], ["hybrid"])) == ()


def test_tables_fit_80_columns(four_policies: dict[str, Any]) -> None:
    long = {"quick": "slipstream_released"}
    text = json.dumps(four_policies).replace('"quick"', '"slipstream_released"')
    renamed = json.loads(text)
    for each in renamed["over_seeds"].values():  # sizes as long as they get
        for key in ("to_device_bytes", "to_host_bytes", "device_tier_bytes"):
            each[key] = {**each[key], "mean": 1000.0 * 2**30 / 7}
        for key in ("trained_ratio", "hot_lookup_ratio"):
            each[key] = {**each[key], "mean": 1.0}
    for heads, rows in ((QUALITY_HEADS, quality_rows(renamed)), (WORK_HEADS, work_rows(renamed))):
        listed = [[head.rstrip(">") for head in heads], *rows]
        widths = [max(len(row[column]) for row in listed) for column in range(len(heads))]
        assert long["quick"] in [row[0] for row in listed]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80, (widths, listed)


def test_curves_are_means_over_the_seeds_and_end_with_their_runs(four_policies: dict[str, Any]) -> None:
    line = mean_curve(four_policies["runs"], "hybrid", "seconds")
    mine = [run for run in four_policies["runs"] if run["policy"] == "hybrid"]
    assert line[-1] == pytest.approx((fmean(r["seconds"] for r in mine), fmean(r["auc"] for r in mine)))
    assert between(line, line[-1][0] + 1) is None
    middle = (line[0][0] + line[1][0]) / 2
    assert between(line, middle) == pytest.approx((line[0][1] + line[1][1]) / 2)


def test_the_page_holds_all_figures_and_makes_no_request(four_policies: dict[str, Any]) -> None:
    hostile = json.loads(json.dumps(four_policies).replace('"like"', '"</script><b>:x"'))
    page = compare_page(hostile)
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="', page)
    assert "</script><b>:x" not in page
    assert "&lt;/script&gt;&lt;b&gt;:x" in page
    assert "quick takes 20.0% less time than hybrid" in page
    for run in four_policies["runs"]:
        assert run["directory"] in page
    assert page.count('class="verdict better"') == page.count('class="verdict better">') >= 2
