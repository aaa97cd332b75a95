"""What `trainobs top` prints, and shares that add up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainobs.attach.top import NOT_SEEN, WatchedProcess, _Totals
from trainobs.report.top import render

WAITS = {"data": 0.7, "device": None, "CPU": 0.1, "else": 0.2}


def row(pid: int, **changed: Any) -> dict[str, Any]:
    known = {"steps_per_s": 3.0, "waits": WAITS, "read_bytes_per_s": 1e6, "note": ""}
    return {"pid": pid, "user": "somebody", "command": "python train.py", **known, **changed}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "8")


def shown(count: int, **how: Any) -> list[str]:
    idle = row(99, note=NOT_SEEN)
    rows = [*(row(pid) for pid in range(1, count + 1)), idle]
    return render(rows, "yours", NOT_SEEN, **how).splitlines()


def test_columns_stand_below_their_heads() -> None:
    _, head, one, idle = shown(1)
    for name, value in (("PID", "1"), ("STEPS/S", "3.0"), ("data", "70 %"), ("READ/S", "1 MB")):
        assert head.index(name) + len(name) == one.index(value) + len(value)
    assert head.index("COMMAND") == one.index("python train.py")
    assert idle == "not seen to train, with torch imported: 99"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("/opt/env/bin/python3.12 /home/me/work/train.py --lr 0.1", "train.py --lr 0.1"),
        ("/opt/env/bin/python -m torch.distributed.run train.py", "-m torch.distributed.run tr"),
        ("/opt/env/bin/python", "/opt/env/bin/python"),
        ("python /home/train.py", "python /home/train.py"),
    ],
)
def test_of_a_command_that_has_no_room_what_it_runs_is_seen(command: str, seen: str) -> None:
    line = render([row(1, command=command)], "yours", NOT_SEEN).splitlines()[-1]
    assert line.endswith(f"1 MB  {seen}")


def test_a_low_terminal_keeps_the_head_and_tells_of_what_has_no_room() -> None:
    assert len(shown(20)) == 23, "all of them, where it is no terminal"
    lines = shown(20, fits=True)
    assert len(lines) == 7, "the cursor stays in the last of eight"
    assert "STEPS/S" in lines[1]
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "3", "4"]
    assert lines[6] == "17 more lines: in a higher terminal, or by `--once`"
    assert shown(4, fits=True)[-1].endswith(": 99"), "what has room is all there"


def test_without_a_training_it_says_so() -> None:
    assert render([], "yours", NOT_SEEN, fits=True).startswith("no training process of yours")


def test_a_wait_that_began_earlier_makes_no_more_than_the_whole_time() -> None:
    run: Any = SimpleNamespace(clock=SimpleNamespace(measured={0}))
    grown = dict.fromkeys(_Totals._fields, 0)
    grown |= {"at_ns": 2_000, "off_ns": 8_000, "data_ns": 6_000, "ready_ns": 1_000}
    shares = WatchedProcess(run)._waits(_Totals(**grown))
    assert shares == {"data": 0.75, "device": 0, "CPU": 0.125, "else": 0.125}
