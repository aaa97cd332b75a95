"""Every reader of a run log, tried on one: what must hold whatever is in it.

A command prints and returns 0, or says in three lines what is wrong and returns 2. The tab of
TensorBoard answers, or says the same. JSON is JSON.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlencode

from tensorboard.plugins.base_plugin import TBContext

import trainobs
from trainobs.access import AccessCounts
from trainobs.cli import main
from trainobs.core.errors import TrainobsError
from trainobs_tensorboard.plugin import TrainobsPlugin

MESSAGE = re.compile(r"\A(trainobs: .*\n)*[^\n]+\n  found: [^\n]*\n  do:    [^\n]*\n\Z")
"""What a command may print to standard error: notes, and one error of three lines."""


class Reading(NamedTuple):
    """One reader's answer.

    Attributes:
        reader: its name.
        trouble: what must not be; empty where all is well.
        seconds: that it took.
        peak_bytes: by which it raised the highest memory use of the process.
        refused: whether it said that the run log cannot be read.
    """

    reader: str
    trouble: str
    seconds: float
    peak_bytes: int
    refused: bool


READERS = (
    *("report", "report --json", "report --full", "report --step", "report --html"),
    *("compare", "compare --html", "whatif", "load_run", "AccessCounts", "TensorBoard"),
)


def readings(
    run: Path, sound: Path, scratch: Path, names: Collection[str] = READERS
) -> Iterator[Reading]:
    """Try readers.

    Args:
        run: a run log.
        sound: another one, to compare it with.
        scratch: a directory to write pages to.
        names: of the readers, among `READERS`.
    """
    page = scratch / "page.html"
    commands = {
        "report": ("report", run),
        "report --json": ("report", run, "--json"),
        "report --full": ("report", run, "--full"),
        "report --step": ("report", run, "--step", "3", "--json"),
        "report --html": ("report", run, "--html", page),
        "compare": ("compare", sound, run, "--json"),
        "compare --html": ("compare", run, sound, "--html", page),
        "whatif": ("whatif", run, "workers=4", "--json"),
    }
    calls: dict[str, Callable[[], bool]] = {
        name: partial(_command, [str(word) for word in words]) for name, words in commands.items()
    }
    calls |= {"load_run": partial(_load, run), "AccessCounts": partial(_counts, run)}
    calls["TensorBoard"] = partial(_tab, run)
    for name in names:
        yield _read(name, calls[name])


def strict_json(text: str) -> Any:
    """What JSON of any other language would read: no NaN, no infinity.

    Raises:
        ValueError: it is none.
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _read(name: str, read: Callable[[], bool]) -> Reading:
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest use begins anew
    begin = time.perf_counter()
    trouble, refused = "", False
    try:
        refused = read()
    except Exception:
        trouble = traceback.format_exc()
    seconds = time.perf_counter() - begin
    return Reading(name, trouble, seconds, max(0, _memory("VmHWM") - before), refused)


def _command(words: list[str]) -> bool:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    assert status in (0, 2), f"exit status {status}"
    if status == 2:
        assert MESSAGE.match(err.getvalue()), f"no message of three lines: {err.getvalue()!r}"
        assert not out.getvalue(), "prints and fails"
        return True
    if "--json" in words:
        strict_json(out.getvalue())
    else:
        lines = out.getvalue().splitlines()
        assert all(map(str.isprintable, lines)), f"steers the terminal: {lines!r}"[:2000]
    return False


def _load(run: Path) -> bool:
    try:
        loaded = trainobs.load_run(run)
        tables = (loaded.steps, loaded.batches, loaded.kernel, loaded.embeddings)
        del tables
        strict_json(json.dumps(loaded.summary))
        str(loaded.verdict).encode()
    except TrainobsError:
        return True
    return False


def _counts(run: Path) -> bool:
    try:
        AccessCounts.load(run)
    except TrainobsError:
        return True
    return False


def _tab(run: Path) -> bool:
    """Ask as the tab's page does, which takes the number of lanes and levels from the head."""
    data = TrainobsPlugin(TBContext(logdir=str(run.parent))).get_plugin_apps()["/data"]
    head = _asked(data, run, "head")
    if head is None:
        return True
    places = [f"steps/{group}" for group in head["groups"]] + ["ranks"]
    paths = [f"{place}/{head['levels'][-1]}/0" for place in places if head["steps"]]
    answers = [_asked(data, run, path) for path in ("summary", *paths, "lanes/0")]
    return None in answers


def _asked(data: Any, run: Path, path: str) -> Any:
    """A piece; None where it is refused."""
    told: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "QUERY_STRING": urlencode({"run": run.name, "path": path})}
    content = b"".join(data(environ, lambda status, headers: told.append(status)))
    answer = strict_json(content.decode())
    if told == ["200 OK"]:
        return answer
    assert told[0] in ("400 Bad Request", "404 Not Found"), f"{path}: {told}: {answer}"
    assert MESSAGE.match(answer["error"] + "\n"), f"{path}: no message of three lines: {answer}"
    return None


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
