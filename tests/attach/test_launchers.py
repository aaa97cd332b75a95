"""A process that only starts those that train is refused at once, and these are named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.attach.target import Target, attached
from trainobs.attach import process
from trainobs.attach.process import MappedFile, attach_to, find, named
from trainobs.attach.process import Target as Seen
from trainobs.core.errors import AttachError

pytestmark = pytest.mark.needs_bpf

TORCH = {process.TORCH: MappedFile("libtorch_cpu.so", "libtorch_cpu.so")}
LAUNCHER, CHILD, GRANDCHILD = 100, 101, 102


def test_torchrun_is_refused_before_anything_is_loaded(start: Callable[..., Target]) -> None:
    target = start("without_loader", 600, ranks=2)
    pids = sorted(target.pid(rank) for rank in range(2))
    with pytest.raises(AttachError) as caught:
        find(target.process.pid)
    assert f"no rank of it; {pids[0]} and {pids[1]} have torch, too" in str(caught.value)
    assert f"trainobs attach {pids[0]}, which attaches to all ranks" in str(caught.value)
    assert find(pids[1]).tgid == pids[1]


def test_who_waits_for_a_child_is_given_up_soon(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("in_a_child", 600)
    pid, began = target.pid(), time.monotonic()
    done = attached(pid, tmp_path / "run", "--look", "200")
    took_s = time.monotonic() - began
    target.stop()
    assert done.returncode == 2
    assert "it has started " in done.stderr
    assert took_s < 100
    target.events()


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes a launcher, its child and that one's child be there, with their environments."""

    def make(*environments: Mapping[str, str], has_torch: bool = True) -> None:
        seen = {}
        for tgid, environment in zip((LAUNCHER, CHILD, GRANDCHILD), environments, strict=True):
            place = tmp_path / str(tgid)
            place.mkdir()
            settings = "".join(f"{name}={value}\0" for name, value in environment.items())
            (place / "environ").write_text(settings)
            (place / "comm").write_text("python\n")
            (place / "status").write_text(
                f"State:\tS\nTgid:\t{tgid}\nPPid:\t1\nUid:\t0\t0\nVmSize:\t1\n"
            )
            (place / "stat").write_text(f"{tgid} (python) S {tgid - 1} " + "0 " * 48)
            mine = TORCH if has_torch or tgid != LAUNCHER else {}
            seen[tgid] = Seen(tgid, tgid, os.getuid(), "python", environment, mine)
        below = {LAUNCHER: [CHILD, GRANDCHILD], CHILD: [GRANDCHILD], GRANDCHILD: []}

        class Tree:
            def descendants(self, root: int) -> list[int]:
                return below[root]

        (tmp_path / "self").symlink_to(str(os.getpid()))
        monkeypatch.setattr(process, "PROC", tmp_path)
        monkeypatch.setattr(process, "find_tree", lambda proc: Tree())
        monkeypatch.setattr(process, "look_at", seen.__getitem__)

    return make


RANK_0 = {"RANK": "8", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environments", "why"),
    [
        (({}, {"RANK": "0"}, {"RANK": "0"}), "the launcher of a job"),
        (({}, RANK_0, RANK_0), "the launcher of a job"),
        (({}, {"RANK": "1", "LOCAL_RANK": "1"}, {}), ""),
        (({"RANK": "0"}, {"RANK": "0"}, {}), ""),
        (({}, {}, RANK_0), ""),
        (({}, {}, {}), ""),
    ],
    ids=["first", "of a second node", "starts the others itself", "rank", "starts one", "alone"],
)
def test_only_who_gives_out_ranks_and_has_none_is_a_launcher(
    tree: Callable[..., None], environments: tuple[Mapping[str, str], ...], why: str
) -> None:
    tree(*environments)
    if not why:
        assert find(LAUNCHER).tgid == LAUNCHER
        return
    with pytest.raises(AttachError, match=why):
        find(LAUNCHER)


def test_without_torch_all_that_have_it_are_named(tree: Callable[..., None]) -> None:
    tree({}, {}, {}, has_torch=False)
    with pytest.raises(AttachError, match="101 and 102 have") as caught:
        find(LAUNCHER)
    assert str(caught.value).endswith("trainobs attach 101, or to another one of them")


def test_of_many_some_are_named_and_the_rest_counted() -> None:
    many = [Seen(tgid, tgid, 0, "python") for tgid in range(1, 12)]
    assert named(many[:1]) == "1"
    assert named(many[:3]) == "1, 2 and 3"
    assert named(many) == "1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    assert attach_to(many[:1]) == "trainobs attach 1"


def test_processes_that_compile_for_a_training_do_not_train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("python\n")
    words = "python site-packages/torch/_inductor/compile_worker/__main__.py --workers=32"
    monkeypatch.setattr(process, "PROC", tmp_path)
    monkeypatch.setattr(process, "look_at", lambda tgid: Seen(7, 7, 0, words, {}, TORCH))
    assert list(process._trains(7)) == []
