"""The pieces of a measurement on a GPU, in the order of their worth, and what runs them.

Each piece is a process of its own with a limit. What it found is in `NAME.json` as soon as it ends,
so a machine that goes away takes one piece with it, and the next call goes on behind the last.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ATTEMPTS = 2
"""A piece that twice did not live to tell is passed over."""
TOLD_LINES = 40
_PR_SET_PDEATHSIG = 1

_FEW = "--arm caching_lfu --arm caching_lru_prefetch --arm fae_overlay --arm hbm"
_SHORT = ("--rounds 3 --warmup 400", "--rounds 1")
_FAE = "-m benchmarks.fae_gpu"


def _hot(on_gpu: str, on_host: str) -> tuple[str, str]:
    return f"{_SHORT[0]} --hot-bytes {on_gpu}", f"{_SHORT[1]} --hot-bytes {on_host}"


_PIECES: tuple[tuple[str, str, str, str, float, float], ...] = (
    # name, what to run, more on a GPU, more on the host, seconds it takes, and at most
    ("kernels", "-m benchmarks.gpu.kernels", "", "", 20, 120),
    ("parity", "-m tests.gpu.parity", "--seconds 200", "--cases 4", 210, 400),
    ("fae", _FAE, "", "", 330, 520),
    ("fae-end-to-end", f"{_FAE} --end-to-end", "--rounds 3 --steps 256", "--rounds 1", 80, 300),
    ("fae-slope-0.8", f"{_FAE} --slope 0.8 {_FEW}", *_SHORT, 75, 240),
    ("fae-slope-1.05", f"{_FAE} --slope 1.05 {_FEW}", *_SHORT, 75, 240),
    ("fae-slope-1.2", f"{_FAE} --slope 1.2 {_FEW}", *_SHORT, 75, 240),
    ("fae-hot-128MiB", f"{_FAE} {_FEW}", *_hot("128MiB", "64KiB"), 75, 240),
    ("fae-hot-2GiB", f"{_FAE} {_FEW}", *_hot("2GiB", "2MiB"), 75, 240),
    ("observers", "-m benchmarks.gpu.observers", "", "--pairs 2 --steps 4", 200, 420),
    ("on-device", "tests/gpu/on_device.py {out}", "", "", 80, 240),
    ("sanitizer", "-m benchmarks.gpu.sanitizer", "", "", 80, 240),
)


@dataclass(frozen=True)
class Piece:
    """A part of the measurement.

    Attributes:
        name: of its files.
        command: arguments of Python; `{out}` is the file that it writes, if it does.
        about_s: what it is expected to take; it begins if so much time is left.
        limit_s: it is ended then; what it has written stays.
    """

    name: str
    command: tuple[str, ...]
    about_s: float
    limit_s: float


def pieces(device: str) -> list[Piece]:
    """All of them; on the host (`cpu`) with sizes that only show that they run."""
    found = []
    for name, what, on_gpu, on_host, about_s, limit_s in _PIECES:
        if what.startswith("-m"):
            what += f" --device {device} --out {{out}}"
        more = on_gpu if device == "cuda" else on_host
        found.append(Piece(name, tuple(f"{what} {more}".split()), about_s, limit_s))
    return [piece for piece in found if device == "cuda" or piece.name != "on-device"]


def run(
    plan: Sequence[Piece], results: Path, within_s: float, again: Sequence[str] = ()
) -> list[str]:
    """Run what has not run, as long as time is left.

    Args:
        plan: the pieces, in order.
        results: folder of what they find; made where it is missing.
        within_s: no piece begins that is expected to end later, and none goes on longer.
        again: names of pieces to run though they ran.

    Returns:
        Names of the pieces that are still to be run.
    """
    end, results = time.monotonic() + within_s, results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    for name in again:
        (results / f"{name}.json").unlink(missing_ok=True)
    for piece in plan:
        state = _state(results, piece)
        if state["came"] != "to do":
            continue
        left = end - time.monotonic()
        if left < piece.about_s:
            print(f"{piece.name}: not begun, {left:.0f} s are left", flush=True)
            continue
        print(f"{piece.name}: begins, about {piece.about_s:.0f} s", flush=True)
        _write(results, piece, {"came": "begun", "attempts": state["attempts"] + 1})
        outcome = _outcome(piece, results, min(piece.limit_s, left))
        _write(results, piece, {**outcome, "attempts": state["attempts"] + 1})
        print(f"{piece.name}: {outcome['came']} after {outcome['seconds']:.0f} s", flush=True)
        collect(plan, results)
    return [piece.name for piece in plan if _state(results, piece)["came"] == "to do"]


def collect(plan: Sequence[Piece], results: Path) -> None:
    """All that was found, in one file: `all.json`."""
    found = {
        piece.name: json.loads((results / f"{piece.name}.json").read_text())
        for piece in plan
        if (results / f"{piece.name}.json").exists()
    }
    (results / "all.json").write_text(json.dumps(found, indent=1) + "\n")


def _state(results: Path, piece: Piece) -> dict[str, Any]:
    """How far a piece is; one that begun and did not tell is to do again, but not for ever."""
    path = results / f"{piece.name}.json"
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {"came": "to do", "attempts": 0}
    if state["came"] == "begun":
        state["came"] = "to do" if state["attempts"] < ATTEMPTS else "given up"
    return state


def _outcome(piece: Piece, results: Path, limit_s: float) -> dict[str, Any]:
    out, log = results / f"{piece.name}.out.json", results / f"{piece.name}.log"
    out.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-W",
        "ignore",
        *(p.replace("{out}", str(out)) for p in piece.command),
    ]
    begin = time.monotonic()
    with log.open("wb") as told:
        process = subprocess.Popen(
            command,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # it and its workers: a session of its own
            process.wait()
            code = None
    came = "passed" if code == 0 else "ran too long" if code is None else "failed"
    found = json.loads(out.read_text()) if out.exists() else None
    lines = log.read_text(errors="replace").splitlines()[-TOLD_LINES:]
    seconds = time.monotonic() - begin
    return {"came": came, "seconds": seconds, "found": found, "log": [] if code == 0 else lines}


def _end_with_parent() -> None:
    """Leave nothing that would share the device with the next call, if this one is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _write(results: Path, piece: Piece, state: dict[str, Any]) -> None:
    path = results / f"{piece.name}.json"
    path.with_suffix(".new").write_text(json.dumps(state, indent=1) + "\n")
    path.with_suffix(".new").replace(path)
