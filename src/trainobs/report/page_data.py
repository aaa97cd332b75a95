"""Pieces of runs for a server: TensorBoard's, say."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainobs.analysis.comparison import compare
from trainobs.analysis.view import RunView
from trainobs.report import comparison
from trainobs.report.html import as_json

_KEPT = 4
"""Runs whose columns are kept in memory."""

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
    with _lock:
        if path == "compare" and old_dir is not None:
            sides = ([_view(directory).run] for directory in (old_dir, run_dir))
            return as_json(comparison.piece(compare(*sides)))
        return as_json(_view(run_dir).piece(path))


_lock = threading.Lock()
_views: OrderedDict[Path, tuple[_State, RunView]] = OrderedDict()


def _view(run_dir: Path) -> RunView:
    """The view of a run, read again if the run has gone on."""
    state = _state_of(run_dir)
    known = _views.pop(run_dir, None)
    if known is None or known[0] != state:
        known = (state, RunView.open(run_dir))
    _views[run_dir] = known
    while len(_views) > _KEPT:
        _views.popitem(last=False)
    return known[1]


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
