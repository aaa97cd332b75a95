"""Reading a run log, also one whose run was killed, or is still going on."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from trainobs.core.coverage import Coverage
from trainobs.core.errors import RunLogError, shown
from trainobs.core.text import counted
from trainobs.runlog import schema as names
from trainobs.runlog.columns import TABLES
from trainobs.runlog.directory import BESIDE, JOB
from trainobs.runlog.info import cannot_read, counters_of, phases_of, read_info, tables_of
from trainobs.runlog.rank import RankLog

_LEVELS = 4
"""How far below a given directory a run is looked for."""


_OF_THE_JOB = ("schema", "trainobs", "clock", "world_size")
"""What `run.json` says of all ranks, also of one that was killed before it wrote its own file."""


class RunLog:
    """One run, whole or as far as it can be read.

    Attributes:
        path: the run directory.
        info: the contents of `run.json`, or of the same file of the rank that was asked for.
        ranks: rank number -> what that rank recorded, ascending.
        rank: the one that is told of where only one is: the lowest, or that which was asked for.
        is_part: whether older parts were left out because only the newest were asked for.
    """

    def __init__(
        self,
        path: Path,
        info: Mapping[str, Any],
        ranks: Mapping[int, RankLog],
        is_part: bool = False,
        rank: RankLog | None = None,
    ) -> None:
        self.path = path
        self.info = info
        self.ranks = ranks
        self.is_part = is_part
        self.rank = rank or next(iter(ranks.values()), None) or RankLog(0, {})

    @cached_property
    def unreadable(self) -> dict[Path, str]:
        """Files that are left out -> why; of others it turns out when they are read."""
        found = (rank.files.unreadable().items() for rank in self.ranks.values())
        return self._unknown_ranks() | dict(chain.from_iterable(found))

    def _unknown_ranks(self) -> dict[Path, str]:
        """Files of what is true for a rank, which it writes before its tables -> what is wrong."""
        found = {}
        for number, rank in self.ranks.items():
            file = names.run_file(self.path, number)
            try:
                read_info(file)
            except RunLogError as error:
                if any(rank.files[table] for table in rank.files):
                    found[file] = error.found
        return found

    @classmethod
    def open(cls, path: Path | str, newest_parts: int = 0, rank: int | None = None) -> RunLog:
        """Open a run directory, or the newest run up to four levels below `path`.

        Args:
            path: the directory, or the `run.json` in it.
            newest_parts: how many parts of each table to read, from the last one back; 0: all.
            rank: the one to tell of; None: the lowest.

        Raises:
            RunLogError: there is no run or no such rank, or its `run.json` is not one this version
                can read.
        """
        try:
            run_dir = _find(Path(path))
            info = read_info(run_dir / names.RUN_FILE)
            files = {one: names.files_of(run_dir, one, TABLES) for one in names.ranks(run_dir)}
            parts = (len(own[names.STEPS]) for own in files.values())
            is_part = 0 < newest_parts < max(parts, default=0)
            ranks = {
                number: _open_rank(run_dir, number, _newest(own, newest_parts))
                for number, own in files.items()
            }
        except OSError as error:
            do = "see that you may read it, and that its file system is there"
            raise cannot_read(Path(path), str(error), do) from error
        run = cls(run_dir, info, ranks, is_part)
        return run if rank is None else run.of(rank)

    def of(self, rank: int) -> RunLog:
        """The same run, telling of another rank.

        Raises:
            RunLogError: there is no such rank.
        """
        if rank not in self.ranks:
            raise _no_such_rank(self.path, rank, list(self.ranks))
        own = self.ranks[rank].info
        common = {name: value for name, value in self.info.items() if name in _OF_THE_JOB}
        info = {**common, **own} if rank else own or self.info
        return RunLog(self.path, info, self.ranks, self.is_part, self.ranks[rank])


def _newest(files: Mapping[str, Sequence[Path]], parts: int) -> Mapping[str, Sequence[Path]]:
    """The last files of each table; of what has parts as the steps have, none of older ones.

    All of them where those of steps are no more: of other tables there may be many.

    Args:
        files: table -> its files.
        parts: how many; 0: all.
    """
    if not 0 < parts < len(files[names.STEPS]):
        return files
    found = {table: own[-parts:] for table, own in files.items()}
    first = names.part_number(found[names.STEPS][0])
    for table in (names.KERNEL, names.BATCHES):
        found[table] = [file for file in found[table] if names.part_number(file) >= first]
    return found


def newest_for(path: Path) -> Path:
    """The newest of the runs that were to go to a run directory, of which only the first did.

    Of any other path, that path.
    """
    try:
        is_run = _is_ours(path / names.RUN_FILE)
        if not is_run and not (path.is_dir() and names.ranks(path)):  # killed as it began
            return path
        name = path.absolute().name
        others = path.absolute().parent.glob(f"{glob.escape(name)}-*/{names.RUN_FILE}")
        runs = [file.parent for file in others if _is_ours(file) and _was_for(name, file)]
        return max([path, *runs] if is_run else runs, key=_began, default=path)
    except OSError:  # `open` will meet the same
        return path


def _was_for(name: str, file: Path) -> bool:
    asked: object = read_info(file).get("settings", {}).get(BESIDE)
    return asked == name


def find_run(path: Path) -> Path | None:
    """`path` if it is a run directory, or the newest run up to four levels below; or None.

    Raises:
        OSError: a directory cannot be read.
    """
    if path.name == names.RUN_FILE and path.is_file():
        return path.parent
    own = path / names.RUN_FILE
    if _is_ours(own):
        return path
    files, _ = _look_below(path)
    runs = [file.parent for file in files if _is_ours(file)]
    # Where there is no other run, this one's fault is to be told.
    return max(runs, key=_began, default=path if own.exists() else None)


def shut_below(path: Path) -> list[Path]:
    """Where a newer run may lie, and this user may not look; of a run directory nowhere.

    Raises:
        OSError: a directory cannot be read.
    """
    return [] if path.is_file() or _is_ours(path / names.RUN_FILE) else _look_below(path)[1]


def _look_below(path: Path) -> tuple[list[Path], list[Path]]:
    """Each `run.json` below a directory, near ones first, and what may not be looked into."""
    files: list[Path] = []
    shut: list[Path] = []
    level = [path]
    for depth in range(_LEVELS + 1):
        inner: list[Path] = []
        for directory in level:
            file = directory / names.RUN_FILE
            try:
                if depth and _is_there(file):
                    files.append(file)
                if depth < _LEVELS:
                    inner += _directories(directory)
            except PermissionError:
                shut.append(directory)
        level = inner
    return files, shut


def _is_there(file: Path) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return bool(file.stat())
    return False


def _directories(path: Path) -> list[Path]:
    # Gone since it was seen, or no directory.
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return [path / entry.name for entry in entries if _is_directory(entry)]
    return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link that leads nowhere
        return entry.is_dir()
    return False


def _find(path: Path) -> Path:
    if found := find_run(path):
        return found
    raise RunLogError(
        failed=f"There is no run to read in {path.absolute()}.",
        found=_what_is_there(path),
        do=f"give the directory that holds {names.RUN_FILE}, or one above it",
    )


def _no_such_rank(run_dir: Path, rank: int, ranks: Sequence[int]) -> RunLogError:
    found, do = f"records of {counted(len(ranks), 'rank')}", "leave the rank out"
    if len(ranks) > 1:
        which = f"from {ranks[0]} to {ranks[-1]}"
        found, do = f"{found}, {which}", f"give one {which}"
    elif ranks:
        found += f": {ranks[0]}"
    return RunLogError(
        failed=f"There is no record of rank {shown(rank)} in {run_dir}.",
        found=found,
        do=f"{do}; a rank on another machine may have its record there",
    )


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return "no such file or directory"
    if not path.is_dir():
        return "a file, where a directory was expected"
    if names.ranks(path):
        return (
            f"no {names.RUN_FILE}: rank 0, which writes it, did not observe its training, was "
            "killed as it began, or is elsewhere"
        )
    nothing = f"no {names.RUN_FILE} of trainobs in it, nor four levels below"
    shut = not_seen(shut_below(path))
    return f"{nothing}, but {shut}" if shut else nothing


def not_seen(shut: Sequence[Path]) -> str:
    """What was not looked through, in words; "" for nothing."""
    others = f" and {len(shut) - 1} more" if len(shut) > 1 else ""
    return f"no permission to look into {shut[0]}{others}" if shut else ""


def _is_ours(file: Path) -> bool:
    """Whether a `run.json` found on the way is a run log, and not another tool's."""
    try:
        read_info(file)
    except RunLogError:
        return False
    return True


def _began(run_dir: Path) -> int:
    """Wall time at which a run began, ns; unlike file times it survives a copy."""
    return int(read_info(run_dir / names.RUN_FILE)["clock"].get("wall_ns", 0))


def _open_rank(run_dir: Path, rank: int, files: Mapping[str, Sequence[Path]]) -> RankLog:
    info = _info_of(names.run_file(run_dir, rank))
    host = info.get("host", {}).get("hostname")
    wall_ns, own_ns = (info.get("clock", {}).get(f"{one}_ns") for one in ("wall", "monotonic"))
    coverage = _coverage_of(info)
    return RankLog(
        rank,
        files,
        tables=tables_of(info),
        phases=phases_of(info),
        counters=counters_of(info),
        host=host,
        job=info.get("settings", {}).get(JOB),
        has_ended=info.get("summary") is not None,
        clock_ns=None if None in (wall_ns, own_ns) else wall_ns - own_ns,
        coverage=coverage,
        info=info,
    )


def _coverage_of(info: Mapping[str, Any]) -> Coverage:
    """What the kernel side of a run could tell. Below its level `/proc` tells some of the same."""
    if info.get("level") not in ("ebpf", "attached"):
        return Coverage.whole()
    # Versions without this one took every sleep for another thread for one for gloo.
    assumed = {**Coverage.EVERY_PROGRAM, "tobs_waking": "not yet"}
    return Coverage({**assumed, **info.get("capabilities", {})})


def _info_of(file: Path) -> Mapping[str, Any]:
    """What is true for a rank; nothing where it was killed before it could write its file."""
    try:
        return read_info(file)
    except RunLogError:
        return {}
