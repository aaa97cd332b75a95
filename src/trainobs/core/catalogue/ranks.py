"""How the ranks of a job stand to each other."""

from __future__ import annotations

from trainobs.core.abi import Op
from trainobs.core.catalogue.making import MAIN, kernel
from trainobs.core.metrics import TAGS, Cells, Metric

RANKS: tuple[Metric, ...] = (
    kernel(
        "ranks/wait_ns",
        Cells("bytes", (Op.AWAIT,), (), MAIN),
        "Time the training thread waited in collectives and for messages of a rank, for the "
        "slowest rank and for the network: the part of sched/main_await_ns until a thread of gloo "
        "woke it.",
        unit="ns",
        source="sched_switch, sched_waking",
        blind="Collectives of NCCL, in which the host does not sleep, and gloo whose threads have "
        "other names, as in torch 2.5: null.",
        chart="Waiting for other ranks",
    ),
)

COMPARED: tuple[str, ...] = (
    "step/duration_ns",
    "loader/wait_ns",
    "phase/forward_ns",
    "phase/backward_ns",
    "ranks/wait_ns",
)
"""Metrics of which rank 0's TensorBoard shows minimum, median and maximum over ranks: the first of
them by default, the others on request."""


def over_ranks(tag: str) -> str:
    """Tag, up to `/min` and its like, of a metric that is compared and has this tag."""
    own = tag.removeprefix(TAGS).removeprefix("ranks/")
    return f"{TAGS}ranks/{own}"
