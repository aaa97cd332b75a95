"""What a step sends between ranks, counted, beside what TorchRec's sharder sends."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.fae_bytes import STEPS, sent_in_step, sharded
from tests.fae.ranks import Ranks

_ARMS = ("table_wise", "overlay", "partitioned")
_OVERLAY_AT_MOST = {  # times the bytes of TorchRec's sharder; see docs/fae-reference.md
    2: {"pure": 0.34, "mixed": 1.29},
    4: {"pure": 0.47, "mixed": 1.41},
    8: {"pure": 0.64, "mixed": 1.57},
}


@pytest.mark.parametrize("step", STEPS)
def test_two_ranks(pair: Ranks, step: str) -> None:
    _check(pair, 2, step)


@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks(ranks: int) -> None:
    group = Ranks(ranks)
    try:
        for step in STEPS:
            _check(group, ranks, step)
    finally:
        group.stop()


def test_an_exchange_of_hot_lookups_alone_would_show(pair: Ranks) -> None:
    stock, apart = _of(pair, 2, "mixed", "table_wise"), _of(pair, 2, "mixed", "apart")
    assert apart["bytes"]["device"] > 1.9 * stock["bytes"]["device"]
    assert apart["collectives"]["device"] > stock["collectives"]["device"]


def _check(group: Ranks, ranks: int, step: str) -> None:
    stock, overlay, partitioned = (_of(group, ranks, step, arm) for arm in _ARMS)
    assert partitioned["bytes"]["device"] == stock["bytes"]["device"] > 0
    assert partitioned["collectives"]["device"] == stock["collectives"]["device"]
    assert partitioned["collectives"]["host"] == ranks  # one wait of each
    if step in _OVERLAY_AT_MOST[ranks]:
        most = _OVERLAY_AT_MOST[ranks][step] * stock["bytes"]["device"]
        assert overlay["bytes"]["device"] <= most


def _of(group: Ranks, ranks: int, step: str, arm: str) -> dict[str, dict[str, int]]:
    """Bytes and collectives of all ranks, by group."""
    of_ranks = group.run(_sent, ranks, step, arm)
    return {
        what: {kind: sum(of_rank[what].get(kind, 0) for of_rank in of_ranks) for kind in kinds}
        for what, kinds in dict.fromkeys(("bytes", "collectives"), ("device", "host")).items()
    }


def _sent(rank: int, ranks: int, step: str, arm: str) -> dict[str, dict[str, int]]:
    model: Any = sharded("partitioned" if arm == "apart" else arm, ranks)
    if arm == "apart":
        model._overlay.rows.joins_mixed = False
    sent = sent_in_step(model, arm, step, ranks, rank)
    return {"bytes": sent.bytes, "collectives": sent.collectives}
