"""Metrics of what programs of a user's count: of one run, beside those of the catalogue."""

from __future__ import annotations

from trainobs.core.metrics import Metric, MetricKind
from trainobs.core.own_counter import OWN, OWN_ROLES, OwnCounter, of_role


def metrics_of_counter(counter: OwnCounter) -> tuple[Metric, ...]:
    """The sum over all roles, then the part of each role; all in one chart."""
    by_role = (
        _metric(
            counter, of_role(counter.name, role), f"{counter.title} of role {role.name.lower()}."
        )
        for role in OWN_ROLES
    )
    return (_metric(counter, counter.name, f"{counter.title} of all roles."), *by_role)


def is_own_counter(metric: str) -> bool:
    """Whether a metric is one of these."""
    return metric.startswith(OWN)


def _metric(counter: OwnCounter, name: str, tells: str) -> Metric:
    kind, chart = MetricKind.SUM, counter.title
    return Metric(name, counter.unit, kind, f"own probe {counter.probe}", tells, chart=chart)
