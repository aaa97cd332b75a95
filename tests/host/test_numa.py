"""NUMA statistics, of this machine and of one with more nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.host.test_sampler import fds
from trainobs.core.catalogue import METRICS
from trainobs.host.numa import NODES, RemoteMemory

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def write(nodes: Path, node: int, pages: int) -> None:
    """As the kernel writes it."""
    counts = {
        "numa_hit": 1134802328,
        "numa_miss": 0,
        "numa_foreign": 3,
        "interleave_hit": 1135,
        "local_node": 1134802328,
        "other_node": pages,
    }
    (nodes / f"node{node}").mkdir(exist_ok=True)
    text = "".join(f"{name} {count}\n" for name, count in counts.items())
    (nodes / f"node{node}" / "numastat").write_text(text)


def test_pages_of_all_nodes_add_up(tmp_path: Path) -> None:
    before = fds()
    write(tmp_path, 0, 7)
    write(tmp_path, 10, 5)
    (tmp_path / "has_cpu").write_text("0,10\n")
    remote = RemoteMemory(tmp_path)
    assert set(remote.names) <= set(METRICS)
    assert remote.totals() == (12 * PAGE_BYTES,)
    write(tmp_path, 10, 9)
    assert remote.totals() == (16 * PAGE_BYTES,)
    remote.close()
    remote.close()
    assert fds() == before
    with pytest.raises(OSError, match="descriptor"):
        remote.totals()


@pytest.mark.parametrize("pages", [(), (7,)])
def test_a_machine_of_one_node_has_none(tmp_path: Path, pages: tuple[int, ...]) -> None:
    before = fds()
    for node, count in enumerate(pages):
        write(tmp_path, node, count)
    remote = RemoteMemory(tmp_path)
    assert remote.names == remote.totals() == ()
    assert fds() == before


def test_this_machine_is_read_where_it_has_several() -> None:
    nodes = list(NODES.glob("node[0-9]*"))
    remote = RemoteMemory()
    assert len(remote.names) == (len(nodes) > 1)
    assert all(total >= 0 for total in remote.totals())
    remote.close()
