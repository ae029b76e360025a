"""``runs``, ``dashboard``, ``serve``, ``eval`` and ``report``: the runs under way, and uses of a run directory."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, print_json, printable_path, say, show, waiting
from adaptive_rec.cli.parser import (
    LINK_HINT,
    add_checkpoint_option,
    add_client_options,
    add_command,
    add_metrics_option,
    add_serve_options,
    given_serve_options,
    metric_names,
    on_terminal,
    serve_options,
)
from adaptive_rec.cli.predict import inputs_of, ratios, strangers, strangers_in_words, unknown_in_words
from adaptive_rec.errors import UsageError
from adaptive_rec.units import clock, whole

if TYPE_CHECKING:
    from adaptive_rec.data.unknown import Unknown
    from adaptive_rec.live.runtime_file import RuntimeFile
    from adaptive_rec.run.parent import ParentRun

def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "runs", runs, "list the runs under way")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    parser = add_command(
        subparsers, "dashboard", dashboard, "print a link that opens a run's dashboard once, within ten minutes"
    )
    parser.add_argument("--header", action="store_true", help="print the Authorization header instead, for curl -H @-")
    add_client_options(parser, url=False)
    parser = add_command(subparsers, "serve", serve, "serve dashboard and API of a finished run, read-only")
    parser.add_argument("directory", metavar="RUN", type=Path, help="run directory")
    add_serve_options(parser)
    parser = add_command(
        subparsers, "eval", evaluate, "score a run's checkpoint on its held-out data, or on other data"
    )
    parser.add_argument("directory", metavar="RUN", type=Path, help="run directory")
    other = (
        "other rows with labels: CSV, TSV or Parquet with the columns of the training data (default: the held-out rows)"
    )
    parser.add_argument("--data", metavar="PATH", type=Path, help=other)
    add_checkpoint_option(parser)
    add_metrics_option(parser, "default: eval.metrics of the run")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser = add_command(subparsers, "report", report, "write the report of a run, finished or not, as one HTML file")
    parser.add_argument("directory", metavar="RUN", type=Path, help="run directory")
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write (default: RUN/report.html)")


def runs(args: argparse.Namespace) -> int:
    """Print the runs under way, without their tokens."""
    from adaptive_rec.live.runtime_file import scanned

    files, damaged = scanned()
    for each in damaged:
        say(f"warning: passed over: {each}", sys.stderr)
    parents, now = [_parent(Path(file.run)) for file in files], at_a_glance(files)
    if args.json:
        about = [{"pid": f.pid, "name": f.name, "run": f.run, "url": f.url, "started": f.started} for f in files]
        places = [{"parent": parent.place if parent else None} for parent in parents]
        print_json([{**each, **place, **figures} for each, place, figures in zip(about, places, now, strict=True)])
        return 0
    if not files:
        print("no run is under way (adaptive-rec train starts one)", file=sys.stderr)
        return 0
    ages = [clock(file.age_seconds) for file in files]
    lines = zip(files, parents, ages, now, strict=True)
    rows = [
        (str(f.pid), f.name, parent.text if parent else "", age, *cells(figures), f.url, f.run)
        for f, parent, age, figures in lines
    ]
    show(columns(("pid", "name", "branch of", "up>", "phase", "step>", "best AUC", "url", "directory"), rows))
    return 0


def _parent(run: Path) -> ParentRun | None:
    """Return where a run comes from; None also where its description is damaged, as others are listed all the same."""
    from adaptive_rec.run.parent import parent_of

    with suppress(UsageError):
        return parent_of(run)
    return None


def dashboard(args: argparse.Namespace) -> int:
    """Print a link to a run's dashboard that signs a browser in once, even into a pipe: that is the purpose of the command."""
    from adaptive_rec.live.runtime_file import find_run

    file = find_run(args.run)
    if args.json:
        print_json({"pid": file.pid, "run": file.run, "url": file.url, "dashboard": file.dashboard_url})
    elif args.header:
        print(f"Authorization: Bearer {file.control_token}")
    else:
        print(file.dashboard_url)
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve a finished run until Ctrl-C, which counts as success."""
    from adaptive_rec.run.directory import check_run

    options = serve_options(given_serve_options(args))
    check_run(args.directory)
    from adaptive_rec.live.sidecar import Sidecar, serve_finished

    def announce(sidecar: Sidecar) -> None:
        link = sidecar.dashboard_url if on_terminal() else f"{sidecar.url}   {LINK_HINT}"
        print(f"dashboard   {link}\nread-only, until {'Ctrl-C' if on_terminal() else 'SIGTERM'}", flush=True)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return serve_finished(args.directory, options, announce, lambda text: say(text, sys.stderr))
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def evaluate(args: argparse.Namespace) -> int:
    """Score a run's checkpoint."""
    from adaptive_rec.run.inputs import check_trained

    metrics = metric_names(args.metrics)
    check_trained(args.directory)
    files = None if args.data is None else inputs_of(args.directory, args.data)
    waiting(f"loading {args.directory}")
    from adaptive_rec.live.telemetry import to_json
    from adaptive_rec.run.resume import evaluate_run
    from adaptive_rec.run.scoring import Scorer

    def warn(text: str) -> None:
        say(f"warning: {text}", sys.stderr)

    shared: dict[str, dict[str, Unknown]] = {}
    if files is None:
        result, chosen = evaluate_run(args.directory, warn, args.checkpoint, metrics)
    else:
        scorer = Scorer(args.directory, files, True, warn, args.checkpoint, metrics)
        result, found, chosen = scorer.quality(), strangers(scorer), scorer.chosen
        shared = {name: of for name, of in found.items() if name == "shared"}
        for words in strangers_in_words(found):
            say(f"warning: {words}", sys.stderr)
    if math.isnan(result.quality.auc):
        warn("all rows have the same label: there is no AUC and no normalized entropy")
    figures = {"step": result.step, **result.quality.as_dict()}
    if args.json:
        print(to_json({**figures, **chosen.figures(), **ratios(shared)}))
        return 0
    print(f"{'model':<20}", chosen)
    ranking = figures.pop("ranking", {})
    ranked = ranking.pop("metrics", {})
    for name, value in {**figures, **ranking, **ranked}.items():
        print(f"{name.replace('_', ' '):<20}", f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
    for name, of in shared.items():
        print(f"{name:<20}", unknown_in_words(name, of))
    return 0


def report(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    if args.out is not None and args.out.exists():
        raise UsageError(f"--out must be a new file, {printable_path(args.out)} exists")
    waiting(f"reading {args.directory}")
    from adaptive_rec.offline.report.run_report import write_report

    say(printable_path(write_report(args.directory, args.out)))
    return 0


PATIENCE_SECONDS = 2.0
"""Longest time for the answer of a run; one that does not answer is listed without these figures."""
AT_ONCE = 8


def at_a_glance(files: Sequence[RuntimeFile]) -> list[dict[str, Any]]:
    """Return phase, step and best evaluation of each run; null where its service does not answer."""
    if not files:
        return []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(_of, files))


def _of(file: RuntimeFile) -> dict[str, Any]:
    from adaptive_rec.cli.client import ApiError, UnreachableError, client_of_run

    now: Mapping[str, Any] = {}
    try:
        with client_of_run(file, PATIENCE_SECONDS) as client:
            now = client.get("/status").body
    except (ApiError, UnreachableError):
        pass
    return {name: now.get(name) for name in ("phase", "step", "steps_total", "best_evaluation")}


def cells(now: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return phase, step and best evaluation as the list has them; "-" for what is not known."""
    step, best = now["step"], now["best_evaluation"]
    score = "-" if best is None or best["auc"] is None else f"{best['auc']:.4f} at step {whole(best['step'])}"
    return now["phase"] or "no answer", "-" if step is None else whole(step), score
