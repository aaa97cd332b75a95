"""Short ways to write the metrics of the catalogue, and the sums that many are made of."""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op, Phase, Role
from trainobs.core.coverage import CALLS, SCHEDULER
from trainobs.core.metrics import Cells, Metric, MetricKind

DATA = (FileClass.DATA,)
CHECKPOINT = (FileClass.CHECKPOINT,)
WORK = (Phase.OTHER, Phase.TRANSFER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""Phases in which a step does its own work; logging is in the first of them."""

MAIN = (Role.MAIN,)
THREAD = (Role.THREAD,)
WORKER = (Role.WORKER,)
READS = (Op.READ, Op.URING_READ)
WRITES = (Op.WRITE, Op.URING_WRITE)


def kernel(
    name: str,
    formula: Cells,
    tells: str,
    *,
    unit: str = "",
    chart: str = "",
    blind: str = "",
    source: str = "system calls",
    spread: bool = False,
) -> Metric:
    """A sum over kernel cells; of a count, `unit` says of what."""
    unit = unit or formula.field.removeprefix("wait_")
    return Metric(name, unit, MetricKind.SUM, source, tells, blind, chart, formula, spread)


def by_phase(field: str, op: Op, *phases: Phase) -> Cells:
    """What the training thread spent in some phases: their numbers stand in place of a class."""
    return Cells(field, (op,), tuple(map(FileClass, phases)), MAIN)


def timed(
    name: str, tells: str, *, chart: str = "", blind: str = "", spread: bool = False
) -> Metric:
    """A time taken in the training loop."""
    return Metric(name, "ns", MetricKind.SUM, "training loop", tells, blind, chart, None, spread)


def loader_part(name: str, tells: str, *, chart: str) -> Metric:
    """A part of the wait for the loader; null where one batch that was waited for is unknown."""
    return Metric(
        name,
        "ns",
        MetricKind.SUM,
        "marks of batches, sched_switch",
        tells,
        "Loaders that are not torch's, do not keep the order, or have an iterable data set; "
        "threads that a worker starts.",
        chart,
        rests_on=CALLS | SCHEDULER,
    )


def phase(of: Phase, tells: str) -> Metric:
    """Time of a phase."""
    return timed(phase_metric(of), tells, chart=f"Phase: {of.name.lower()}")


def phase_metric(of: Phase) -> str:
    """Name of the metric that holds the time of a phase."""
    return "loader/wait_ns" if of is Phase.LOADER else f"phase/{of.name.lower()}_ns"
