"""Which tags TensorBoard gets: those that are a curve."""

from __future__ import annotations

from trainobs.core.sink import Points


class Curves:
    """Holds back the first point of a tag until there is one at another step.

    TensorBoard draws a chart for each tag, whatever it holds: a metric that is known in one step of
    a run (the latency of the only step that read from a device) would be a chart of one dot. The
    run log has that number, too.
    """

    def __init__(self) -> None:
        self._drawn: set[str] = set()
        self._first: dict[str, tuple[int, int, float]] = {}

    def of(self, points: Points) -> list[Points]:
        """What is to be logged now: first points that were held back, and these."""
        step, at_ns, values = points
        if self._drawn.issuperset(tag for tag, _ in values):
            return [points]
        logged: dict[tuple[int, int], list[tuple[str, float]]] = {}
        for tag, value in values:
            if tag not in self._drawn:
                first_ns, first, held = self._first.get(tag, (at_ns, step, value))
                if first == step:
                    self._first[tag] = at_ns, step, value
                    continue
                del self._first[tag]
                self._drawn.add(tag)
                logged.setdefault((first_ns, first), []).append((tag, held))
            logged.setdefault((at_ns, step), []).append((tag, value))
        return [Points(x, at, of) for (at, x), of in sorted(logged.items())]
