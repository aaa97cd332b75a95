"""The report's first section: the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def section(summary: dict[str, Any]) -> Iterator[str]:
    """The page's first section: the verdict on the run, and those epochs that differ."""
    run = summary["verdict"]["run"]
    yield "Verdict"
    yield from (f"  {line}" for line in run["text"])
    changes = list(_changes(summary["verdict"]["epochs"]))
    if len(changes) > 1:
        yield from (f"  epoch {epoch}: {verdict['text'][0]}" for epoch, verdict in changes)


def _changes(epochs: Mapping[int, dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Epochs whose verdict is another one than that of the epoch before."""
    before: tuple[object, object] | None = None
    for epoch, verdict in epochs.items():
        if (now := (verdict["kind"], verdict["cause"])) != before:
            yield epoch, verdict
        before = now
