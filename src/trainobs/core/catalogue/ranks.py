"""How the ranks of a job stand to each other."""

from __future__ import annotations

from trainobs.core.abi import Op
from trainobs.core.coverage import FEEDS
from trainobs.core.metrics import TAGS, Metric, MetricKind

RANKS: tuple[Metric, ...] = (
    Metric(
        "ranks/wait_ns",
        "ns",
        MetricKind.SUM,
        "sched_switch",
        "Time the training thread waited in collectives, for the slowest rank and for the "
        "network: sched/main_await_ns of a job of several ranks on gloo.",
        "Collectives of NCCL, in which the host does not sleep: null. Waiting for intra-op threads "
        "is included; torchrun leaves one thread to a rank, so there is none.",
        "Waiting for other ranks",
        rests_on=FEEDS[Op.AWAIT],
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
