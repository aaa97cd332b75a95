"""Other trainings of the same job that are no ranks of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.kernel.processes import fork
from trainobs.attach import siblings
from trainobs.attach.process import TORCH, MappedFile
from trainobs.attach.process import Target as Seen
from trainobs.attach.siblings import Siblings

TORCHED = {TORCH: MappedFile(TORCH, TORCH)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Some processes: number -> its group, whether it has torch, its CPU time in s."""
    used: dict[int, float] = {}

    def make(processes: dict[int, tuple[int, bool]]) -> dict[int, float]:
        for tgid, (group, _) in processes.items():
            (tmp_path / str(tgid)).mkdir()
            (tmp_path / str(tgid) / "stat").write_text(f"{tgid} (a) S 1 {group} " + "0 " * 40)
            used[tgid] = 1.0

        class Tree:
            def descendants(self, root: int) -> list[int]:
                return [9]

        def look_at(tgid: int) -> Seen:
            return Seen(tgid, tgid, 0, "python", {}, TORCHED if processes[tgid][1] else {})

        monkeypatch.setattr(siblings, "PROC", tmp_path)
        monkeypatch.setattr(siblings, "find_tree", lambda proc: Tree())
        monkeypatch.setattr(siblings, "look_at", look_at)
        monkeypatch.setattr(siblings, "cpu_s", lambda tgid: used[tgid])
        monkeypatch.setattr(siblings.os, "sched_getaffinity", lambda tgid: {0, 1})
        moments = iter([100.0, 110.0])
        monkeypatch.setattr(siblings.time, "monotonic", lambda: next(moments))
        return used

    return make


def test_those_of_its_group_with_torch_count_and_no_children_of_its_own(machine) -> None:
    # 5 is it, 9 its worker, 6 and 7 train beside it, 8 is a shell, 4 is of another group, and 3
    # has started them.
    used = machine(
        {
            5: (3, True),
            9: (3, True),
            6: (3, True),
            7: (3, True),
            8: (3, False),
            4: (4, True),
            3: (3, True),
        }
    )
    found = Siblings(5)
    for tgid in used.keys() - {3}:
        used[tgid] += 5.0
    assert found.note() == {"processes": 2, "cpu_ratio": 0.5}


def test_without_any_there_is_nothing_to_tell(machine) -> None:
    machine({5: (3, True), 8: (3, False), 4: (4, True)})
    assert Siblings(5).note() is None


def test_of_a_process_that_has_ended_nothing_is_asked() -> None:
    child = fork(signal.pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert Siblings(child).note() is None
