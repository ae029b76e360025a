"""A run in words: the header at its start, the summary at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adaptive_rec.config.metrics import ranked_of, ranked_texts
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.units import clock, count, counted, percent, printable, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.runtime.loop import Runtime

BAR_CELLS = 24
HELD_OUT, VALIDATED, BEFORE = "held out", "for validation", "before training on them"
"""Which samples were scored."""


def header(runtime: Runtime) -> str:
    """Return policy, device, tables and hot tier in one line, with markup."""
    space, config = runtime.store.peers.batch_space, runtime.config
    dims = "/".join(str(dim) for dim in sorted({table.dim for table in space.tables}))
    types = zip(space.pools, runtime.store.cold.types.weights, strict=True)
    where = " on a disk" if runtime.store.cold.on_disk else ""
    tables_size = f"{size(sum(pool.rows * pool.dim * weights.itemsize for pool, weights in types))}{where}"
    tables = f"{counted(len(space.tables), 'table')}, {count(space.rows)} rows x {dims}, {tables_size}"
    hot_tier = f"hot tier {size(runtime.store.hot.bytes)}"
    name = f"[bold]{escape(printable(config.knobs.policy))}[/] on {runtime.device}"
    return " · ".join([name, tables, hot_tier])


def length(runtime: Runtime) -> str:
    """Return how many steps there are to train, where that is not simply ``run.steps``; else an empty text."""
    return length_in_words(runtime.config, runtime.step_number, runtime.steps_total)


def length_in_words(config: Config, done: int, total: int) -> str:
    """Return the same by the step at which a run starts and the one that is its last; that one is of no account for data that is
    followed."""
    wanted = config.run.steps
    if config.data.follow:
        resumed = f"resumed at step {whole(done)}, " if done else ""
        return f"{resumed}{config.data.source} is followed"
    if not done and config.eval.patience:
        return until_no_better(config, total)
    if done and total <= done:
        more = "read the data more often (data.epochs)" if done < wanted or not wanted else "give more steps"
        return f"resumed at step {whole(done)}: nothing left to train, {more}"
    if done:
        return f"resumed at step {whole(done)}, {whole(total - done)} to go"
    if not wanted and config.data.epochs > 1:
        return f"{whole(config.data.epochs)} passes over the data, {counted(total, 'step')}"
    return f"{counted(total, 'step')}, all that the data has; run.steps is {whole(wanted)}" if total < wanted else ""


def until_no_better(config: Config, total: int) -> str:
    """Return how long a run with patience trains at the most, and what stops it."""
    settings, passes = config.eval, config.data.epochs
    most = f"at most {passes} pass{'es' * (passes > 1)} over the data, {counted(total, 'step')}"
    of = " on the last training rows" if settings.validates else ""
    evaluations = counted(settings.patience, "evaluation")
    then = ", then trains the best model on those" if settings.trains_slice else ""
    return f"{most}; stops after {evaluations} in a row without a better {settings.metric}{of}{then}"


def positives_alone(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield how negatives are drawn and what is ranked, where all rows are positives."""
    if not runtime.config.data.implicit.negatives:
        return
    from adaptive_rec.data.implicit.negatives import negatives_of

    settings = runtime.config.eval
    if (drawn := negatives_of(runtime.source)) is not None:
        yield "negatives", drawn.in_words()
        yield "evaluation", runtime.evaluator.candidates(settings.max_samples, settings.validates).in_words()


def summary_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the summary as pairs of label and value."""
    s = summary
    seen, trained, skips = s["samples_seen"], s["samples_trained"], s["action"] is not None
    action = f" ({s['action']})" if skips else ""
    yield "policy", f"{s['policy']}{action}, seed {s['seed']}, {s['device']}, {s['precision']}"
    quality = summary["eval"]
    before = s.get("followed", False) or s.get("windows") is not None
    scored = quality_text(quality, BEFORE if before else HELD_OUT) if quality else ""
    yield "quality", Text(scored, style="bold green") if scored else "not scored, the run was stopped"
    yield from chosen_lines(s)
    if quality and (ranking := quality.get("ranking")):
        yield "ranking", ranking_text(ranking)
    if windows := s.get("windows"):
        auc, logloss = (f"{math.nan if windows[name] is None else windows[name]:.4f}" for name in ("auc_mean", "logloss_mean"))
        ranked = "".join(f", mean {text}" for text in ranked_texts(windows.get("metrics_mean", {})))
        counts = f"{counted(windows['count'], 'window')} of the stream"
        yield "windows", f"{counts}, mean AUC {auc}, mean logloss {logloss}{ranked}"
    best = s.get("best_eval")
    if quality and best and best["step"] < s["steps"] and s.get("eval_mode") != "validation":
        yield "best", f"AUC {best['auc']:.4f}  logloss {best['logloss']:.4f}  at step {whole(best['step'])}"
    weight = "" if s.get("weight_trained") is None else f", of weight {count(s['weight_trained'])} in all"
    yield "trained", f"{count(trained)} of {count(seen)} samples seen{weight}, {counted(s['steps'], 'step')}"
    yield "speed", f"{count(s['samples_per_second'])} samples/s, {clock(s['seconds'])}"
    popular = f"{percent(s['popular_sample_ratio'])} of samples are popular (every lookup hot)"
    yield "hot", f"{percent(s['hot_lookup_ratio'])} of lookups, {popular}"
    if skips:
        share = ratio(s["row_updates_skipped"], s["row_updates"] + s["row_updates_skipped"])
        yield "skipped", f"{percent(share)} of row updates, {percent(ratio(seen - trained, seen))} of samples"
    stale = f", {count(s['stale_rows'])} of them stale at the end" if skips else ""
    of_all = f"{percent(ratio(s['hot_rows'], s['total_rows']))} of {count(s['total_rows'])}"
    memory = "" if s.get("memory_rows") is None else f", {count(s['memory_rows'])} cold ones in host memory"
    yield "rows", f"{count(s['hot_rows'])} hot ({of_all}){stale}{memory}"
    where = "hot tier" if s["device"] == "cpu" else "device"
    moved = f"{size(s['host_to_device_bytes'])} to the {where}, {size(s['device_to_host_bytes'])} back"
    yield "moved", f"{moved}, {count(s['migrated_rows'])} rows changed tier"
    if s["migrated_rows"] and s["device"] == "cpu" and not s.get("disk"):
        yield "tiers", one_memory(s)
    if keys := s.get("keys"):
        shared = f"{percent(ratio(keys['lookups_shared'], keys['lookups']))} of lookups share one"
        refused = f", {count(keys['refused'])} times an id was refused one" if keys["refused"] else ""
        by_age = f" ({count(keys['evicted_by_age'])} by age)" if keys.get("evicted_by_age") else ""
        back = f", of {count(keys['kept'])} that were kept {count(keys['came_back'])} came back" if keys.get("kept") else ""
        evicted = f", {count(keys['evicted'])} have lost theirs{by_age}{back}" if keys.get("evicted") else ""
        yield "raw ids", f"{count(keys['keys'])} have a row of their own{evicted}, {shared}{refused}"
    if disk := s.get("disk"):
        reads = f"{count(disk['rows_read'])} rows read from files, {count(disk['rows_found'])} found in new segments"
        again = f"{count(disk['rows_again'])} read again in their step"
        writes = f"{count(disk['rows_written'])} written, {count(disk['rows_moved'])} moved by compaction"
        files = f"{size(disk['size_bytes'])} in {counted(disk['segments'], 'segment')}"
        yield "disk", f"{reads}, {again}, {writes}, {files}"
    staging = f", staging {size(s['device_staging_bytes'])}" if s["device_staging_bytes"] else ""
    on_device = f", device {size(s['device_peak_bytes'])} peak" if s["device_peak_bytes"] else ""
    yield "memory", f"{size(s['peak_rss_bytes'])} peak, hot tier {size(s['device_tier_bytes'])}{staging}{on_device}"
    if s["malformed_rows"]:
        yield "malformed", f"{counted(s['malformed_rows'], 'row')} left out"
    for rank, found in enumerate(s.get("ranks", ())):
        yield f"rank {rank}", rank_text(found)
    yield "time", breakdown(s["seconds_by_stage"], s["seconds"])


def one_memory(summary: Mapping[str, Any]) -> str:
    """Return what placing rows has cost a run both of whose tiers are the host's memory, and what would spare it transfers."""
    stages = summary["seconds_by_stage"]
    placing = sum(seconds for name, seconds in stages.items() if name.partition(" ")[0] in ("observe", "reclassify"))
    hot, cost = percent(summary["hot_lookup_ratio"]), percent(ratio(placing, summary["seconds"]))
    return f"both are host memory: placing rows took {cost} of the time; a GPU would spare {hot} of lookups a transfer"


def rank_text(rank: Mapping[str, Any]) -> str:
    """Return what one of several processes has done since it started."""
    work, wait = rank["work_seconds"], rank["wait_seconds"]
    shares = f"{percent(ratio(work, work + wait))} own work, {percent(ratio(wait, work + wait))} waiting for other ranks"
    return f"{shares}, {size(sum(rank['sent_bytes'].values()))} sent"


def breakdown(stages: Mapping[str, float], seconds: float) -> Table:
    """Return the shares of the loop's time by stage, without stages that a worker ran ahead."""
    table = Table.grid(padding=(0, 2))
    own = {name: value for name, value in stages.items() if not name.endswith(")")}
    own["other"] = max(0.0, seconds - sum(own.values()))
    for name, value in sorted(own.items(), key=lambda item: -item[1]):
        share = ratio(value, seconds)
        if share >= 0.005:
            bar = "█" * round(share * BAR_CELLS) or "▏"
            table.add_row(name, Text(percent(share), justify="right"), Text(bar, style="cyan"))
    return table


def chosen_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield which model a validation slice has chosen, and why a run has stopped early."""
    best = summary.get("best_eval")
    if summary.get("eval_mode") == "validation" and best:
        of = f" of at most {summary['epochs']}" if summary["epochs"] else ""
        epoch = f", pass {best['epoch']}{of}" if best["epoch"] else ""
        value = math.nan if best["value"] is None else best["value"]
        model = f"of step {whole(best['step'])}{epoch}: the best {summary['best_metric']} for validation, {value:.4f}"
        more = (summary.get("eval_step") or 0) - best["step"] if summary.get("slice_trained") else 0
        yield "model", f"{model}; then trained on the validation slice, {counted(more, 'step')}" if more else model
    if why := summary.get("stopped_early"):
        yield "stopped", why.partition(";")[0]


def quality_text(quality: Mapping[str, Any], of: str) -> str:
    """Return the quality in words; `of` says which samples were scored."""
    auc, logloss, calibration = (f"{quality[name]:.4f}" for name in ("auc", "logloss", "calibration"))
    ranked = "".join(f"{text}  " for text in ranked_texts(ranked_of(quality)))
    return f"AUC {auc}  logloss {logloss}  calibration {calibration}  {ranked}({count(quality['samples'])} {of})"


def ranking_text(ranking: Mapping[str, Any]) -> str:
    """Return how many groups metrics that rank are the mean of, in words."""
    groups, positive, both = (ranking[name] for name in ("groups", "groups_with_positive", "groups_with_both"))
    return f"{counted(groups, 'group')}, {whole(positive)} with a positive, {whole(both)} with both classes; others do not count"
