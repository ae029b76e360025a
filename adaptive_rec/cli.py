"""The commands. Thin: parse, build the configuration, call. Everything heavy is imported when it is needed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from adaptive_rec import __version__
from adaptive_rec.errors import AdaptiveRecError, MemoryPlanError, UsageError, did_you_mean

if TYPE_CHECKING:
    from adaptive_rec.config import Config
    from adaptive_rec.console import Screen
    from adaptive_rec.runtime import Runtime

EXAMPLES = """\
examples:
  adaptive-rec train                                     synthetic data, under a minute
  adaptive-rec train --data train.txt --policy hotline   a Criteo TSV file (plain, .gz or .zst)
  adaptive-rec train tiny --set knobs.action=drop        a preset, one key changed
  adaptive-rec train --print-config > my.toml            every key and its value, to edit
  adaptive-rec eval runs/NAME                            score a finished run again
"""

OUT_OF_MEMORY = """error: out of memory: {}
for tables on the host, lower data.max_table_rows or model.embedding_dim; on a device, knobs.hot_budget_bytes or run.batch_size"""

DETACHED = """\
training in the background
  pid     {pid}
  run     {out}
  watch   tail -f {log}
  stop    kill {pid}     (ends after the step, with a checkpoint and a summary)"""


def main(argv: list[str] | None = None) -> int:
    """Carry out one command line and return its exit code."""
    # Idle OpenMP threads sleep. Where others use the cores too, threads that spin made training 6 to 10 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.path.append(os.getcwd())  # last: a policy may be a module of the user's folder, but shadows nothing
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except AdaptiveRecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(OUT_OF_MEMORY.format((str(error) or "an allocation failed").splitlines()[0]), file=sys.stderr)
        return MemoryPlanError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch on the host, or CUDA failed to get memory."""
    return (
        isinstance(error, MemoryError)
        or "OutOfMemory" in type(error).__name__
        or re.search("allocate memory|out of memory", str(error)) is not None
    )


# Parsing -------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process, and remembers its options to suggest one."""

    options: tuple[str, ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        self.options = (*self.options, *names)
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="adaptive-rec",
        description="Train recommendation models whose embedding tables do not fit in GPU memory.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"adaptive-rec {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    score: Parser = subparsers.add_parser("eval", help="score a run's newest checkpoint on its held-out data")
    score.set_defaults(command=evaluate)
    score.add_argument("run", metavar="RUN", type=Path, help="run directory")
    score.add_argument("--json", action="store_true", help="print the figures as JSON")
    commands = {"train": _train_parser(subparsers), "eval": score}
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is not None and name not in commands:
        raise UsageError(f"unknown command {name}{did_you_mean(name, commands)} (commands: {', '.join(commands)})")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        options = commands[name].options if name else parser.options
        option = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        raise UsageError(f"unknown argument {option}{did_you_mean(option, options)}")
    if name is None:
        parser.print_help(sys.stderr)
        raise UsageError(f"give a command: {' or '.join(commands)}")
    args.words = argv
    return args


def _train_parser(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser("train", help="train a model, leave a run directory", epilog=EXAMPLES)
    parser.set_defaults(command=train)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="preset (tiny, synthetic, criteo_kaggle, ...) or TOML file")
    add("--policy", metavar="NAME", help="slipstream, hotline, hybrid, device_only, random_skip or module:Class")
    add("--data", metavar="PATH", help="a Criteo TSV file (plain, .gz, .zst), or synthetic")
    add("--steps", metavar="N", help="mini-batches to train on; 0 is all there are")
    add("--seed", metavar="N", help="seed of everything random")
    add("--device", metavar="NAME", help="auto, cpu or cuda")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key; --print-config lists them all")
    add("--out", metavar="DIR", type=Path, help="run directory (default: runs/TIME-POLICY)")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --out, under its config.toml")
    add("--detach", action="store_true", help="train in the background; returns once training is up")
    add("--no-serve", action="store_true", help="no HTTP service (this version has none yet)")
    add("--print-config", action="store_true", help="print the resolved configuration as TOML and exit")
    add("--json", action="store_true", help="print only the summary, as JSON; progress goes to stderr")
    return parser


def train(args: argparse.Namespace) -> int:
    """Train, or print the configuration that training would have."""
    from adaptive_rec.config import to_toml
    from adaptive_rec.policy import load_policy

    if args.resume and args.out is None:
        raise UsageError("--resume needs --out DIR, the run directory to go on with")
    config = resolve(args)
    load_policy(config.policy.name)  # a bad name is told before the seconds that torch takes
    if args.print_config:
        sys.stdout.write(to_toml(config))
        return 0
    out = args.out or default_out(config.policy.name)
    if args.detach:
        return detach(args.words, out, args.resume, args.json)
    return run(config, out, args.resume, args.json)


def resolve(args: argparse.Namespace) -> Config:
    """The configuration of a train command line: flags are shorthands for keys and win over all else."""
    from adaptive_rec.config import load_config

    kept = args.out / "config.toml" if args.resume else None
    source = args.config or (str(kept) if kept and kept.is_file() else preset_for(args.data))
    settings = list(args.set)
    names = {"policy.name": args.policy, "data.source": args.data, "run.device": args.device}
    numbers = {"run.steps": args.steps, "run.seed": args.seed}
    settings += [f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in names.items() if text is not None]
    settings += [f"{key}={text}" for key, text in numbers.items() if text is not None]
    return load_config(source, os.environ, settings)


def preset_for(data: str | None) -> str:
    """The preset that suits some data; that of the full data set would take a small file in a few dozen steps."""
    if data is None or data == "synthetic":
        return "synthetic"
    small = os.path.isfile(data) and os.path.getsize(data) <= 256 << 20
    return "criteo_sample" if small else "criteo_kaggle"


def default_out(policy: str) -> Path:
    """``runs/TIME-POLICY``, with a number behind it where that is taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{policy.rpartition(':')[2]}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in numbered if not path.exists())


def run(config: Config, out: Path, resume: bool, as_json: bool) -> int:
    """Train in this process and print the summary."""
    from adaptive_rec.console import Screen, compiling_shown

    with Screen(to_stderr=as_json) as screen, StopSignals(screen) as signals:
        screen.status("loading torch")
        from adaptive_rec.run import TrainingRun, to_json

        with compiling_shown(screen):
            source = config.data.source
            screen.status(
                "building tables" if source == "synthetic" else f"reading {Path(source).name}, building tables"
            )
            training = TrainingRun(config, out, resume)
            signals.runtime = training.runtime
            screen.begin(training.runtime)
            for event in training.events():
                screen.show(event)
            screen.status("writing the checkpoint, scoring the held-out samples")
            summary = training.finish()
    if as_json:
        print(to_json(summary))
    else:
        screen.summary(summary, out)
    return signals.exit_code


def detach(words: list[str], out: Path, resume: bool, as_json: bool) -> int:
    """Start the same command in a session of its own. Returns once it trains, or when it ended, with its exit code.

    The child makes the run directory. Its log begins beside that and is moved in when it is there.
    """
    config, log = out / "config.toml", out / "log.txt"
    going_on = config.exists()
    draft = log if going_on and resume else out.with_name(f".{out.name}.log")
    code, pid = _start([word for word in words if word not in ("--detach", "--json")], out, draft)
    if not going_on and config.exists():
        draft = draft.rename(log)
    if code:
        print(draft.read_text(encoding="utf-8", errors="replace"), end="", file=sys.stderr)
        print(f"training ended with exit code {code}", file=sys.stderr)
        if draft != log:
            draft.unlink()
        return code if code > 0 else 128 - code
    told = DETACHED.format(pid=pid, out=out, log=shlex.quote(str(log)))
    print(json.dumps({"pid": pid, "run": str(out)}) if as_json else told)
    return 0


def _start(words: list[str], out: Path, log: Path) -> tuple[int | None, int]:
    """Start training; wait for its first line of metrics or its end. Returns its exit code, if it has one, and its id."""
    import subprocess

    metrics = out / "metrics.jsonl"
    size_before = metrics.stat().st_size if metrics.exists() else 0
    command = [sys.executable, "-m", "adaptive_rec", *words, f"--out={out}"]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as stream:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
            )
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    try:
        while child.poll() is None and not (metrics.exists() and metrics.stat().st_size > size_before):
            time.sleep(0.05)
    except KeyboardInterrupt:
        child.terminate()
        raise
    return child.returncode, child.pid


def evaluate(args: argparse.Namespace) -> int:
    """Score a run's newest checkpoint."""
    from dataclasses import asdict

    from adaptive_rec.run import evaluate_run, to_json

    result = evaluate_run(args.run)
    figures = {"step": result.step, **asdict(result.quality)}
    if args.json:
        print(to_json(figures))
        return 0
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<20}", f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
    return 0


class StopSignals:
    """SIGINT and SIGTERM: the first asks the loop to stop and finish in good order, the second ends the process."""

    def __init__(self, screen: Screen) -> None:
        self.runtime: Runtime | None = None
        self.exit_code = 0
        self._screen = screen
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        second, self.exit_code = self.exit_code != 0, 128 + number
        if second:
            self._screen.abandon()
            os._exit(self.exit_code)
        if self.runtime is None:
            raise SystemExit(self.exit_code)  # nothing has been trained yet
        self.runtime.stop_requested = True
        self._screen.stopping()
