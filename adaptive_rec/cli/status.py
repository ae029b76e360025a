"""``status``: the state of a run under way, once or continuously."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import console, pairs, print_json, show
from adaptive_rec.cli.parser import add_client_options, add_command, on_terminal
from adaptive_rec.config.metrics import ranked_of, ranked_texts
from adaptive_rec.live.life import OVER
from adaptive_rec.units import clock, count, counted, percent, printable, size, whole

if TYPE_CHECKING:
    from adaptive_rec.cli.client import Client

WATCH_SECONDS = 1.0
PATIENCE_SECONDS = 15.0
"""Time after which a watched service without an answer has ended; a restarted one answers sooner."""
LATE_SECONDS = 10.0
QUALITY = (("auc", "AUC"), ("logloss", "logloss"), ("calibration", "calibration"))


def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "status", status, "show the state of a run under way")
    parser.add_argument("--watch", action="store_true", help="update it each second, until Ctrl-C or the run's end")
    add_client_options(parser)


def status(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    with connect(args.run, args.url) as client:
        if args.watch:
            return watch(client, args.json)
        now = client.get("/status").body
        if args.json:
            print_json(now)
        else:
            show(pairs(status_lines(now, client.get("/stats").body, client.url)))
    return 0


def watch(client: Client, as_json: bool) -> int:
    """Print the state each second: redrawn on a terminal, a line each elsewhere. Ctrl-C ends it with success."""
    try:
        if on_terminal() and not as_json:
            _redraw(client)
        else:
            for now, stats in _answers(client):
                print(json.dumps(now, allow_nan=False) if as_json else one_line(now, stats), flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def _redraw(client: Client) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for now, stats in _answers(client):
            live.update(pairs(status_lines(now, stats, client.url)), refresh=True)


def _answers(client: Client) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield status and statistics each second, until the run is over or its service is gone."""
    from adaptive_rec.cli.client import ApiError, UnreachableError

    answered: float | None = None
    while True:
        try:
            now, stats = client.get("/status").body, client.get("/stats").body
        except (UnreachableError, ApiError) as error:
            if answered is None or (isinstance(error, ApiError) and error.status not in (429, 503)):
                raise
            if time.monotonic() - answered > PATIENCE_SECONDS:
                print("the run is over, or its service is gone", file=sys.stderr)
                return
        else:
            answered = time.monotonic()
            yield now, stats
            if now.get("phase") in OVER or not now.get("live", True):
                return
        time.sleep(WATCH_SECONDS)


def status_lines(now: Mapping[str, Any], stats: Mapping[str, Any], url: str) -> list[tuple[str, str]]:
    """Return the state of a run as labels and values."""
    run, ratios = now["run"], stats["ratios"]
    evaluation = now["evaluation"] or {}
    scores = [f"{name} {evaluation[key]:.4f}" for key, name in QUALITY if evaluation.get(key) is not None]
    scores += ranked_texts({name: value for name, value in ranked_of(evaluation).items() if value is not None})
    return [
        ("run", run["name"]),
        ("branch of", _parent(run)),
        ("policy", f"{now['policy']}, seed {run['seed']}, {run['device']}, {run['precision']}"),
        ("phase", _phase(now)),
        ("error", now.get("error") or ""),
        *(("damaged", f"{each['file']}: {each['fault']}") for each in now.get("damaged", ())),
        ("step", _progress(now)),
        ("speed", f"{count(now['samples_per_second'] or 0)} samples/s, {clock(now['seconds'] or 0)} so far"),
        ("loss", "" if now["loss"] is None else f"{now['loss']:.4f}"),
        ("quality", "  ".join(scores) + f"  at step {whole(evaluation['step'])}" if scores else ""),
        ("best", _best(now)),
        ("held out", _held_out(now)),
        ("stopped", (now.get("stopped_early") or "").partition(";")[0]),
        ("overfit", _overfit(now)),
        ("hot", f"{_share(ratios['hot_lookup'])} of lookups, {_share(ratios['popular_sample'])} of samples are popular"),
        ("skipped", _skipped(ratios)),
        ("rows", f"{count(stats['hot_rows'])} hot, {count(stats['stale_rows'])} of them stale"),
        ("memory", _memory(now)),
        ("disk", _disk(stats)),
        ("raw ids", _keys(stats)),
        *((f"rank {rank['rank']}", _rank(rank)) for rank in now.get("ranks", ())),
        ("straggler", _straggler(now)),
        ("dashboard", url),
        ("directory", run["path"]),
    ]


def one_line(now: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """Return the state in one line, for logs."""
    ratios = stats["ratios"]
    figures = [
        printable(now["run"]["name"]),
        _phase(now),
        f"step {_progress(now)}",
        f"{count(now['samples_per_second'] or 0)} samples/s",
        "" if now["loss"] is None else f"loss {now['loss']:.4f}",
        f"hot lookups {_share(ratios['hot_lookup'])}",
        f"skipped {_skipped(ratios)}",
        printable(_straggler(now)),
    ]
    return "   ".join(figure for figure in figures if figure)


def _parent(run: Mapping[str, Any]) -> str:
    """Return where a branch comes from; empty for another run, and for services that do not say."""
    parent = run.get("parent")
    return f"{parent['run']} at step {whole(parent['step'])}" if parent else ""


def _phase(now: Mapping[str, Any]) -> str:
    """Return the phase, with the age of the last step where training hangs."""
    age = float(now.get("last_step_age_seconds") or 0)
    late = now["phase"] == "training" and age >= LATE_SECONDS
    return f"{now['phase']}, no step for {clock(age)}" if late else str(now["phase"])


def _progress(now: Mapping[str, Any]) -> str:
    step, total, eta = now["step"], now["steps_total"], now["eta_seconds"]
    done = f"{whole(step)} of {whole(total)} ({percent(step / total)})" if total else whole(step)
    return done if eta is None or now["phase"] in OVER else f"{done}, {clock(eta)} left"


def _best(now: Mapping[str, Any]) -> str:
    """Return the best evaluation so far; empty where there is none, or the newest one is it."""
    best, newest = now.get("best_evaluation"), now["evaluation"] or {}
    if not best or best["step"] == newest.get("step"):
        return ""
    metric, value = now.get("best_metric"), best.get("value")
    if metric not in (None, "auc") and value is not None:
        return f"{metric} {value:.4f}  at step {whole(best['step'])}"
    return "" if best["auc"] is None else f"AUC {best['auc']:.4f}  at step {whole(best['step'])}"


def _held_out(now: Mapping[str, Any]) -> str:
    """Return the score of the best model at the end of a run that validates; else empty."""
    if not (found := now.get("held_out")):
        return ""
    scores = [f"{name} {found[key]:.4f}" for key, name in QUALITY if found.get(key) is not None]
    return "  ".join(scores) + f"  by the model of step {whole(found['step'])}"


def _overfit(now: Mapping[str, Any]) -> str:
    """Return since when training and evaluation loss have parted; empty where they have not."""
    if not (parted := now.get("overfit")):
        return ""
    least, now_at = (f"{parted[f'{which}logloss']:.4f} at step {whole(parted[f'{which}step'])}" for which in ("least_", ""))
    training = f"training loss {parted['least_training_loss']:.4f}, then {parted['training_loss']:.4f}"
    return f"evaluation logloss {least}, {now_at}; {training}"


def _skipped(ratios: Mapping[str, Any]) -> str:
    return f"{_share(ratios['skipped_row_update'])} of row updates, {_share(ratios['skipped_sample'])} of samples"


def _memory(now: Mapping[str, Any]) -> str:
    """Return staging and peak memory of the device; empty on the CPU, or where the run does not report them."""
    staging, peak = now.get("staging_bytes", 0), now.get("peak_bytes", 0)
    return f"staging {size(staging)}, device {size(peak)} peak" if staging or peak else ""


def _disk(stats: Mapping[str, Any]) -> str:
    """Return what a step does with rows on a disk, lately; empty where all rows are in memory."""
    if not (disk := stats.get("disk")):
        return ""
    rows = {name: whole(round(disk[f"rows_{name}_per_step"])) for name in ("ahead", "again", "read", "written", "moved")}
    asked = f"{rows['ahead']} rows ahead of a step and {rows['again']} in it, {rows['read']} read from files"
    waited = f"{1000 * disk['wait_seconds_per_step']:,.1f} ms waiting"
    files = f"{size(disk['size_bytes'])} in {counted(disk['segments'], 'segment')}"
    return f"{asked}, {waited}, {rows['written']} written, {rows['moved']} moved, {files}"


def _keys(stats: Mapping[str, Any]) -> str:
    """Return what becomes of raw ids lately; empty where ids are rows."""
    if not (keys := stats.get("keys")):
        return ""
    own = f"{whole(keys['keys'])} with a row of their own, {keys['admitted_per_step']:,.1f} more a step"
    refused = f", {keys['refused_per_step']:,.1f} a step refused, as tables are full" if keys["refused_per_step"] else ""
    evicted = f", {whole(keys['evicted'])} have lost theirs" if keys["evicted"] else ""
    return f"{own}{evicted}, {_share(keys['shared_lookup_ratio'])} of lookups share a row{refused}"


def _rank(rank: Mapping[str, Any]) -> str:
    """Return what one of several processes has done lately."""
    work, wait = (f"{1000 * rank[f'{name}_seconds_per_step']:,.1f} ms" for name in ("work", "wait"))
    sent = {kind: bytes_ for kind, bytes_ in rank["sent_bytes_per_sample"].items() if round(bytes_)}
    kinds = ", ".join(f"{kind} {whole(bytes_)}" for kind, bytes_ in sent.items())
    sum_text = f"{whole(sum(sent.values()))} bytes sent a sample ({kinds})"
    return f"{work} own work a step, {wait} waiting, {sum_text}, {percent(rank['hot_lookup_ratio'])} hot lookups"


def _straggler(now: Mapping[str, Any]) -> str:
    """Return the sentence that names the rank that the others wait for, if there is one."""
    return str((now.get("straggler") or {}).get("text", ""))


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else percent(ratio)
