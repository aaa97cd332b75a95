"""The command line: `trainobs doctor`, `report`, `compare`, `whatif`, `attach` and `top`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainobs.core.errors import TrainobsError
from trainobs.core.output import tell, write, write_page
from trainobs.core.strict_json import dumps
from trainobs.core.text import printable
from trainobs.core.version import __version__
from trainobs.report.sides import runs_last, sides_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the command line without the program's name; None: `sys.argv`.

    Returns:
        The exit status: 0; 1 if `doctor` finds that less than everything is observed; 2 if what
        was asked for cannot be done; 130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parser().parse_args(runs_last(words) if words[:1] == ["compare"] else words)
        answer: _Answer = options.command(options)
        if answer.text:
            write(answer.text)
    except TrainobsError as error:
        # Line by line, because the message quotes paths and files that may hold anything.
        tell("\n".join(map(printable, str(error).split("\n"))))
        return 2
    except KeyboardInterrupt:
        return 130  # as a shell tells of a program that SIGINT has ended
    return answer.status


_RUN = "a run directory, or a directory of runs: then the newest"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainobs",
        description="Says why a PyTorch training step is slow, from what the kernel did meanwhile.",
        epilog="Exit status: 0; 1 if `doctor` finds that something cannot be observed; 2 after an "
        "error; 130 if Ctrl-C interrupted it.",
    )
    parser.add_argument("--version", action="version", version=f"trainobs {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_report, _add_compare, _add_whatif, _add_attach, _add_top, _add_doctor):
        add(commands)
    return parser


if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def _add_report(commands: _Commands) -> None:
    report = commands.add_parser(
        "report", help="say what bounds the steps of a run, and what would help"
    )
    report.add_argument("run", type=_path, help=_RUN)
    what = report.add_mutually_exclusive_group()
    what.add_argument("--full", action="store_true", help="everything, as text")
    what.add_argument(
        "--io", action="store_true", help="only how files were read (runs with `io=True`)"
    )
    what.add_argument("--watch", action="store_true", help="show it again until the run ends")
    what.add_argument("--step", type=int, metavar="N", help="only what step N waited for")
    report.add_argument(
        "--rank", type=int, metavar="N", help="the rank to show (default: the lowest)"
    )
    report.add_argument(
        "--after",
        type=_path,
        metavar="OLD",
        help="compare with the run OLD, as `trainobs compare OLD RUN` does",
    )
    report.add_argument("--json", action="store_true", help="print all numbers as JSON")
    report.add_argument("--html", type=_path, metavar="FILE", help="write the run as an HTML page")
    report.set_defaults(command=_report)


def _add_compare(commands: _Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="say whether run B is faster than run A, and why",
        usage="trainobs compare [-h] [--json] [--html FILE] A B, or A1 A2 ... -- B1 B2 ...",
        epilog="Give several runs of each to see how much equal runs differ: docs/compare.md.",
    )
    compare.add_argument("runs", nargs="+", type=_path, metavar="RUN", help=_RUN)
    compare.add_argument("--json", action="store_true", help="print all numbers as JSON")
    compare.add_argument(
        "--html", type=_path, metavar="FILE", help="write the comparison as an HTML page"
    )
    compare.set_defaults(command=_compare)


def _add_whatif(commands: _Commands) -> None:
    whatif = commands.add_parser(
        "whatif",
        help="predict how fast a run would be after a change",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_changes(),
    )
    whatif.add_argument("run", type=_path, help=_RUN)
    whatif.add_argument(
        "changes",
        nargs="*",
        default=[],  # else argparse calls it required
        metavar="CHANGE",
        help="see below; several are predicted together",
    )
    whatif.add_argument("--json", action="store_true", help="print the predictions as JSON")
    whatif.set_defaults(command=_whatif)


def _add_attach(commands: _Commands) -> None:
    attach = commands.add_parser(
        "attach",
        help="observe a training process that runs already, from outside",
        epilog="A user may attach to their own processes, root to any: docs/attach.md.",
    )
    attach.add_argument(
        "pid", type=_pid, metavar="PID", help="the process; `trainobs top` lists those that train"
    )
    attach.add_argument(
        "--for",
        type=_seconds,
        dest="seconds",
        metavar="SECONDS",
        help="how long to observe it (default: until it ends, or Ctrl-C)",
    )
    attach.add_argument(
        "--data",
        type=_path,
        action="append",
        metavar="PATH",
        help="where its training data is; repeatable (default: found by who reads it)",
    )
    attach.add_argument(
        "--probe",
        type=_path,
        action="append",
        metavar="FILE",
        help="a probe of your own, in C; repeatable: docs/own-probes.md",
    )
    look = "how long to look for its steps; give more if one takes long (default: %(default)g)"
    attach.add_argument("--look", type=_seconds, default=60.0, metavar="SECONDS", help=look)
    where = "where the run log goes (default: trainobs/<date and time>)"
    attach.add_argument("--run-dir", type=_path, metavar="DIR", help=where)
    attach.add_argument(
        "--inside",
        action="store_true",
        help="have the process observe itself, from Python 3.14 on: docs/attach.md",
    )
    attach.set_defaults(command=_attach)


def _add_top(commands: _Commands) -> None:
    top = commands.add_parser(
        "top",
        help="list the processes that train: their steps a second, and what they wait for",
        epilog="Root sees all processes, a user their own. Each is observed while `top` runs.",
    )
    top.add_argument("--once", action="store_true", help="print once, after 24 s at most, and end")
    top.add_argument("--json", action="store_true", help="the same as JSON")
    top.set_defaults(command=_top)


def _add_doctor(commands: _Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say what can be observed on this machine",
        epilog="Exit status: 0 if all probes work here and `TRAINOBS` does not switch trainobs "
        "off, else 1.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)


def _path(text: str) -> Path:
    if not text:  # a variable of the shell that is not set; Path("") is the current directory
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, more than 0")


def _pid(text: str) -> int:
    if text.isdecimal() and text.isascii():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a process ID: see `trainobs top`")


def _changes() -> str:
    from trainobs.report.whatif import help_text

    return help_text()


class _Answer(NamedTuple):
    """What a command prints, and its exit status."""

    text: str
    status: int = 0


def _report(options: argparse.Namespace) -> _Answer:
    from trainobs.analysis.one_step import explain
    from trainobs.analysis.summary import summarize
    from trainobs.analysis.view import RunView
    from trainobs.report import brief, full, html, io_text, one_step
    from trainobs.report.at_odds import refuse_at_odds
    from trainobs.report.rows import fitted
    from trainobs.runlog.reader import RunLog

    refuse_at_odds(options)
    if options.watch:
        return _watch(_newest_run(options.run))
    if options.after is not None:
        return _compared([options.after], [options.run], options)
    newest = _newest_run(options.run)
    run = RunLog.open(newest, rank=options.rank)
    if options.html is not None:
        return _Answer(write_page(html.page(RunView(run)), options.html))
    if options.step is not None:
        found = explain(run, options.step)
        return _Answer(dumps(found, indent=2) if options.json else one_step.render(found))
    summary = summarize(run)
    if options.json:
        return _Answer(dumps(io_text.counted_in(summary) if options.io else summary, indent=2))
    if options.io:
        return _Answer(io_text.render(summary))
    if options.full:
        return _Answer(fitted(full.render(summary)))
    is_newest = newest != options.run
    return _Answer(fitted(brief.render(summary, time.time_ns(), is_newest=is_newest)))


def _watch(path: Path) -> _Answer:
    from trainobs.report.follow import follow
    from trainobs.runlog.reader import RunLog

    if path.exists() and not path.is_dir():
        RunLog.open(path)  # of all that is no directory, one may open the `run.json` of a run
    with suppress(KeyboardInterrupt):  # how one leaves
        follow(path, write, redraws=sys.stdout is not None and sys.stdout.isatty())
    return _Answer("")


def _compare(options: argparse.Namespace) -> _Answer:
    from trainobs.report.at_odds import refuse_at_odds

    refuse_at_odds(options)
    old, new = sides_of(options.runs)
    return _compared(old, new, options)


def _compared(old: Sequence[Path], new: Sequence[Path], options: argparse.Namespace) -> _Answer:
    from trainobs.analysis.comparison.two_sides import compare
    from trainobs.analysis.newest import newer_ones
    from trainobs.report.comparison import render
    from trainobs.report.html import comparison_page
    from trainobs.runlog.reader import RunLog

    _tell(newer_ones([*old, *new]))
    found = compare(*([RunLog.open(path) for path in side] for side in (old, new)))
    if options.html is not None:
        return _Answer(write_page(comparison_page(found), options.html))
    return _Answer(dumps(found, indent=2) if options.json else render(found))


def _whatif(options: argparse.Namespace) -> _Answer:
    from trainobs.analysis.whatif import whatif
    from trainobs.report.whatif import render
    from trainobs.runlog.reader import RunLog

    found = whatif(RunLog.open(_newest_run(options.run)), options.changes)
    return _Answer(dumps(found, indent=2) if options.json else render(found))


def _newest_run(run: Path) -> Path:
    from trainobs.analysis.newest import newest_run

    newest, told = newest_run(run)
    _tell(told)
    return newest


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        tell(printable(f"trainobs: {line}"))


def _attach(options: argparse.Namespace) -> _Answer:
    from trainobs.attach.inside import attach_inside
    from trainobs.attach.job import attach
    from trainobs.probes.own_probe import Probe

    how = {name: getattr(options, name) for name in ("seconds", "data", "run_dir")}
    how["look_s"] = options.look
    if options.inside:
        attach_inside(options.pid, own=options.probe or (), **how)
    else:
        attach(options.pid, own=[Probe(path) for path in options.probe or ()], **how)
    return _Answer("")


def _top(options: argparse.Namespace) -> _Answer:
    from trainobs.attach import top
    from trainobs.report.follow import CLEAR
    from trainobs.report.top import render

    once = options.once or options.json
    redraws = not once and sys.stdout is not None and sys.stdout.isatty()
    with suppress(KeyboardInterrupt):  # how one leaves
        for rows in top.watch(once=once):
            shown = render(rows, top.whose(), top.NOT_SEEN, fits=redraws)
            text = dumps(rows, indent=2) if options.json else shown
            if not write(f"{CLEAR}{text}" if redraws else text):
                break
    return _Answer("")


def _doctor(options: argparse.Namespace) -> _Answer:
    from trainobs.gpu import doctor as gpu
    from trainobs.probes import doctor as probes

    found, of_gpus = probes.examine(), gpu.examine()
    status = 0 if found["complete"] and not found["switched_off"] else 1
    if options.json:
        return _Answer(dumps({**found, "gpu": of_gpus}, indent=2), status)
    return _Answer(f"{probes.render(found)}\n\n{gpu.render(of_gpus)}", status)
