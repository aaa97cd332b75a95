"""What a run sent to and received from each peer: numbers from its table `io_peers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np

from trainobs.core.abi import PEER, Op, Phase, Role
from trainobs.core.coverage import FEEDS, Coverage
from trainobs.core.text import size
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import IO_PEERS

_COUNTED = PEER.names or ()
_WAYS = {"sent": Op.SEND, "received": Op.RECEIVE}
_OWN = (Role.MAIN, Role.THREAD)


class PeerBytes(TypedDict):
    """What was sent to and received from one peer; None where unknown.

    Attributes:
        peer: its address; of a rank one of them; None for all that were not told apart.
        port: its port, where it is on this machine and no rank; else None.
        rank: the one that has the other end in its record, maybe itself; None if none has.
        phases: phase of the training thread -> bytes both ways of its process.
        apart_bytes: bytes both ways of workers and other children.
    """

    peer: str | None
    port: int | None
    rank: int | None
    sent_bytes: int | None
    sent_count: int | None
    received_bytes: int | None
    received_count: int | None
    phases: dict[str, int]
    apart_bytes: int


def peers_of(run: RunLog, rank: RankLog) -> list[PeerBytes] | None:
    """What a rank, with all that it started, sent to and received from each peer.

    Returns:
        None where it was not counted. Else those with most bytes first, the others last.

    Raises:
        RunLogError: a file is damaged.
    """
    if not rank.files[IO_PEERS] or len(_unseen(run)) == len(_WAYS):
        return None
    names = ("own_port", "port", "phase", "role", *_COUNTED)
    columns = [column.tolist() for column in rank.columns(IO_PEERS, names).values()]
    ends = _ends(run, rank)
    found: dict[tuple[str | None, int | None, int | None], dict[str, Any]] = {}
    for peer, own_port, port, phase, role, *sums in zip(
        rank.texts(IO_PEERS, "peer"), *columns, strict=True
    ):
        other = ends.get((port, own_port)) if port > 0 else None
        who = (None, None, other) if other is not None else (peer, max(port, 0) or None, None)
        one = found.setdefault(who, _nothing(peer, *who[1:]))
        _add(one, sums, None if role not in _OWN else Phase(phase).name.lower())
    ordered = sorted(found.values(), key=lambda one: (one["peer"] is None, -_both_ways(one)))
    return cast("list[PeerBytes]", ordered)


def peers_unknown(run: RunLog, rank: RankLog, found: Sequence[PeerBytes] | None) -> list[str]:
    """What `peers_of` does not have, in words; nothing of a run that did not count peers."""
    if not rank.files[IO_PEERS]:
        return []
    unseen = _unseen(run)
    said = [f"bytes {way}, by peer: {why}" for way, why in unseen.items()]
    if found is None or not run.info.get("summary"):
        return said
    sums = {
        "sent": sum(one["sent_bytes"] or 0 for one in found),
        "received": sum(one["received_bytes"] or 0 for one in found),
    }
    for way, known in sums.items():
        missing = np.nansum(rank.metric(f"net/{way}_bytes")) - known
        if way not in unseen and missing > 0:
            said.append(f"{size(missing)} {way}, of which no peer is known")
    return said


def _unseen(run: RunLog) -> dict[str, str]:
    """Ways whose programs do not run -> why."""
    state = run.info.get("capabilities", {})
    known = Coverage(state)
    return {
        way: next(state.get(program, "its probe was not asked for") for program in FEEDS[op])
        for way, op in _WAYS.items()
        if not known.knows(FEEDS[op])
    }


def _ends(run: RunLog, rank: RankLog) -> dict[tuple[int, int], int]:
    """Ports of connections within this machine, own and peer's -> the rank that has this end.

    Nothing of those that several ranks have: in network namespaces of their own they may.
    """
    found: dict[tuple[int, int], int] = {}
    shared = set()
    for number, other in run.ranks.items():
        if other is not rank and (other.host != rank.host or rank.host is None):
            continue
        table = other.columns(IO_PEERS, ("own_port", "port"))
        for ends in set(zip(table["own_port"].tolist(), table["port"].tolist(), strict=True)):
            if ends[1] > 0 and found.setdefault(ends, number) != number:
                shared.add(ends)
    return {ends: number for ends, number in found.items() if ends not in shared}


def _nothing(peer: str | None, port: int | None, rank: int | None) -> dict[str, Any]:
    sums = dict.fromkeys(_COUNTED, 0)
    return {"peer": peer, "port": port, "rank": rank, **sums, "phases": {}, "apart_bytes": 0}


def _add(one: dict[str, Any], sums: Sequence[int], phase: str | None) -> None:
    """Add a row to a peer; of the process itself in a phase, else of a child."""
    amounts = dict(zip(_COUNTED, sums, strict=True))
    for name, amount in amounts.items():
        one[name] = None if amount < 0 else one[name] + amount
    moved = _both_ways(amounts)
    if phase is None:
        one["apart_bytes"] += moved
    else:
        one["phases"][phase] = one["phases"].get(phase, 0) + moved


def _both_ways(one: Mapping[str, Any]) -> int:
    return sum(max(one[f"{way}_bytes"] or 0, 0) for way in _WAYS)
