"""Who the peers of a run are, and what of them is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.runs import HOST, write
from tests.files_read import peer_rows, with_files
from tests.samples import EVERY_PROGRAM, batch
from trainobs.analysis.io.files import files_read
from trainobs.analysis.summary import summarize
from trainobs.core.abi import Phase, Role
from trainobs.report import io_text
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import IO_PEERS, part_file

ON = {**EVERY_PROGRAM, "files": "on"}
HERE = b"127.0.0.1"
MAIN, THREAD, WORKER = Role.MAIN, Role.THREAD, Role.WORKER


def one_rank(
    path: Path, *rows: tuple, rank: int = 0, sent: float = 0.0, received: float = 0.0, **facts: Any
) -> Path:
    """A rank with these peers, of whose network so much is in its steps."""
    table = batch([0], net__sent_bytes=[sent], net__received_bytes=[received])
    facts = {"capabilities": ON, "end": {"outcome": "ok"}, **facts}
    write(path, table, rank, **facts)
    return with_files(path, peers=peer_rows(*rows), rank=rank)


def found(path: Path, rank: int = 0) -> dict[str, Any]:
    run = RunLog.open(path)
    assert run.unreadable == {}
    io = files_read(run, run.ranks[rank], None)
    assert io is not None
    return io


def who(io: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(io_text.peer_name(one, io["rank"]), one["sent_bytes"]) for one in io["peers"]]


def test_phases_of_a_peer_are_added_up(tmp_path: Path) -> None:
    path = one_rank(
        tmp_path,
        (Phase.BACKWARD, THREAD, b"10.0.0.2", -1, -1, 3, 300, 4, 400),
        (Phase.FORWARD, MAIN, b"10.0.0.2", -1, -1, 1, 100, 0, 0),
        (Phase.BACKWARD, MAIN, b"10.0.0.2", -1, -1, 1, 11, 0, 0),
        (Phase.BACKWARD, WORKER, b"10.0.0.2", -1, -1, 0, 0, 9, 999),
    )
    (one,) = found(path)["peers"]
    assert one == {
        "peer": "10.0.0.2",
        "port": None,
        "rank": None,
        **{"sent_count": 5, "sent_bytes": 411, "received_count": 13, "received_bytes": 1399},
        "phases": {"backward": 711, "forward": 100},
        "apart_bytes": 999,
    }


def test_names_and_their_order(tmp_path: Path) -> None:
    """Clients of one port of this machine are one peer; who was not told apart comes last."""
    path = one_rank(
        tmp_path,
        (Phase.OTHER, MAIN, b"", -1, -1, 9, 9000, 0, 0),
        (Phase.OTHER, MAIN, HERE, 5001, 80, 1, 50, 0, 0),
        (Phase.OTHER, MAIN, HERE, 5002, 80, 1, 51, 0, 0),
        (Phase.OTHER, MAIN, b"::1", 5003, 81, 1, 20, 0, 0),
        (Phase.OTHER, MAIN, b"0.0.0.0", -1, -1, 1, 10, 0, 0),
    )
    assert who(found(path)) == [
        ("127.0.0.1:80", 101),
        ("[::1]:81", 20),
        ("not connected", 10),
        ("others", 9000),
    ]


def test_the_rank_at_the_other_end_is_named(tmp_path: Path) -> None:
    one_rank(
        tmp_path,
        (Phase.BACKWARD, THREAD, HERE, 5001, 6001, 1, 700, 0, 0),
        (Phase.BACKWARD, THREAD, HERE, 5002, 6002, 1, 300, 0, 0),
        (Phase.OTHER, THREAD, HERE, 7000, 7001, 1, 20, 0, 0),
        (Phase.OTHER, THREAD, HERE, 7001, 7000, 0, 0, 1, 20),
        (Phase.OTHER, THREAD, HERE, 5001, 29500, 1, 10, 0, 0),
        world_size=2,
    )
    one_rank(
        tmp_path,
        (Phase.BACKWARD, THREAD, HERE, 6001, 5001, 0, 0, 1, 700),
        (Phase.BACKWARD, THREAD, b"127.0.0.9", 6002, 5002, 0, 0, 1, 300),
        rank=1,
        world_size=2,
    )
    itself = ("itself, and its children", 20)
    assert who(found(tmp_path)) == [("rank 1", 1000), itself, ("127.0.0.1:29500", 10)]
    assert who(found(tmp_path, rank=1)) == [("rank 0", 0)]


@pytest.mark.parametrize(
    ("others", "host"),
    [((1,), "node8"), ((1, 2), HOST["hostname"])],
    ids=["on another machine", "two have it"],
)
def test_a_rank_that_need_not_be_the_one_is_not_named(
    tmp_path: Path, others: tuple[int, ...], host: str
) -> None:
    """In containers of one machine, or of several, connections may have the same ports."""
    one_rank(tmp_path, (Phase.OTHER, MAIN, HERE, 5001, 6001, 1, 700, 0, 0), world_size=3)
    for rank in others:
        end = (Phase.OTHER, MAIN, HERE, 6001, 5001, 0, 0, 1, 700)
        one_rank(tmp_path, end, rank=rank, host={**HOST, "hostname": host}, world_size=3)
    assert who(found(tmp_path)) == [("127.0.0.1:6001", 700)]


def test_what_a_program_did_not_count_is_unknown(tmp_path: Path) -> None:
    path = one_rank(
        tmp_path,
        (Phase.OTHER, MAIN, b"10.0.0.2", -1, -1, 1, 700, -1, -1),
        capabilities={**ON, "tobs_receive": "refused"},
    )
    io = found(path)
    (one,) = io["peers"]
    assert (one["sent_bytes"], one["received_bytes"]) == (700, None)
    assert io["unknown"] == ["bytes received, by peer: refused"]
    (line,) = (line for line in shown(path) if "10.0.0.2" in line)
    assert line.split()[1:4] == ["700", "B", "-"]


def test_without_both_programs_no_peers_are_known(tmp_path: Path) -> None:
    neither = {name: state for name, state in ON.items() if name != "tobs_send"}
    io = found(one_rank(tmp_path, capabilities={**neither, "tobs_receive": "refused"}))
    assert io["peers"] is None
    assert io["unknown"] == [
        "bytes sent, by peer: its probe was not asked for",
        "bytes received, by peer: refused",
    ]


def test_a_run_of_a_version_that_counted_no_peers_has_none(tmp_path: Path) -> None:
    path = one_rank(tmp_path, sent=1000)
    part_file(path, 0, IO_PEERS, 0).unlink()
    io = found(path)
    assert (io["peers"], io["unknown"]) == (None, [])


def test_no_peer_is_not_the_same_as_unknown(tmp_path: Path) -> None:
    io = found(one_rank(tmp_path))
    assert (io["peers"], io["unknown"]) == ([], [])


def test_bytes_that_belong_to_no_peer_are_told(tmp_path: Path) -> None:
    row = (Phase.OTHER, MAIN, b"10.0.0.2", -1, -1, 1, 700, 1, 500)
    io = found(one_rank(tmp_path, row, sent=1700, received=500))
    assert io["unknown"] == ["1 kB sent, of which no peer is known"]


def shown(path: Path) -> list[str]:
    return io_text.render(summarize(RunLog.open(path))).splitlines()


_ALL_IN_BACKWARD = ("0", "%", "100", "%", "0", "%", "0", "%")


def test_the_report_shows_the_first_and_the_others(tmp_path: Path) -> None:
    rows = [
        (Phase.BACKWARD, MAIN, f"10.0.0.{i}".encode(), -1, -1, 1, 1000 - i, 1, 0) for i in range(14)
    ]
    lines = shown(one_rank(tmp_path, *rows, (Phase.OTHER, MAIN, b"", -1, -1, 1, 5, 1, 5)))
    at = next(i for i, line in enumerate(lines) if line.startswith("Peers"))
    assert lines[at + 1].split() == ["10.0.0.0", "1", "kB", "0", "B", *_ALL_IN_BACKWARD]
    assert [line.split()[0] for line in lines[at + 1 : at + 13]] == [
        *(f"10.0.0.{i}" for i in range(10)),
        *("others", "and"),
    ]
    assert lines[at + 12] == "  and 4 more peers: see --json"
