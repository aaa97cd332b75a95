"""Pieces of runs for a server: TensorBoard's, say."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainobs.analysis.comparison.two_sides import compare
from trainobs.analysis.live import SHARE
from trainobs.analysis.view import RunView
from trainobs.report import comparison
from trainobs.report.html import as_json
from trainobs.report.pieces import piece

_KEPT = 4
"""Runs whose columns are kept in memory."""

QUICK_S = 1.0
"""CPU time of a summary that is worth no waiting."""

_State = tuple[tuple[str, int, int], ...]


def page_json(run_dir: Path, query: Mapping[str, str], old_dir: Path | None = None) -> bytes:
    """What the page asks for of a run, as JSON; threads may call it.

    Args:
        run_dir: directory of the run.
        query: `path` of a piece: see `analysis.view`; by default its head. With `old_dir` also
            "compare": see `report.comparison.piece`.
        old_dir: directory of the run to compare it with: A, where `run_dir` is B.

    Raises:
        TrainobsError: there is no such run or piece, a file is damaged, or the runs cannot be
            compared.
    """
    path = query.get("path", "head")
    if path == "compare" and old_dir is not None:
        sides = ([_kept_for(directory).view().run] for directory in (old_dir, run_dir))
        return as_json(comparison.piece(compare(*sides)))
    kept = _kept_for(run_dir)
    if path == "summary":
        return kept.summary()
    view = kept.view()
    with kept.lock:
        return as_json(piece(view, path))


class _Kept:
    """The view of a run, read again if the run has gone on.

    Attributes:
        lock: for who makes pieces from its columns, so that each column is read once.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._state: _State = ()
        self._view: RunView | None = None
        self._summary: tuple[RunView, bytes] | None = None
        self._not_before = 0.0
        self._summing = threading.Lock()
        self.lock = threading.Lock()

    def summary(self) -> bytes:
        """The summary; of a run that goes on the last one, while another would take too much.

        Making it takes long, and none of the columns that the view keeps: no other piece waits.
        """
        with self._summing:
            view = self.view()
            if self._summary is not None:
                of, made = self._summary
                goes_on = not (view.run.info.get("summary") or {}).get("outcome")
                if of is view or (goes_on and time.monotonic() < self._not_before):
                    return made
            began = time.thread_time()
            made = as_json(piece(view, "summary"))
            self._summary = view, made
            took = time.thread_time() - began  # the first time with imports
            self._not_before = time.monotonic() + max(0.0, took - QUICK_S) / SHARE
            return made

    def view(self) -> RunView:
        with self.lock:
            state = _state_of(self._run_dir)
            if self._view is None or state != self._state:
                self._view, self._state = RunView.open(self._run_dir), state
            return self._view


_lock = threading.Lock()
_all: OrderedDict[Path, _Kept] = OrderedDict()


def _kept_for(run_dir: Path) -> _Kept:
    with _lock:
        kept = _all.pop(run_dir, None) or _Kept(run_dir)
        _all[run_dir] = kept
        while len(_all) > _KEPT:
            _all.popitem(last=False)
        return kept


def _state_of(run_dir: Path) -> _State:
    """Names, sizes and times of the files of a run."""
    found = []
    for directory in (run_dir, *sorted(run_dir.glob("rank=*"))):
        with suppress(OSError), os.scandir(directory) as entries:  # gone: reading it tells so
            for entry in entries:
                if entry.name.endswith((".json", ".parquet")):
                    about = entry.stat()
                    found.append((entry.path, about.st_size, about.st_mtime_ns))
    return tuple(sorted(found))
