"""Each metric has one name for people, and each name is of one metric."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import trainobs
from trainobs.core import labels
from trainobs.core.catalogue import METRICS, phase_metric

SOURCE = Path(trainobs.__file__).parent


def test_no_metric_has_two_names():
    phases = {phase_metric(phase): text for phase, text in labels.PHASES.items()}
    groups = (phases, labels.WAITS, labels._MORE, labels.BYTES, labels.CACHE, labels.GPU)
    assert sum(map(len, groups)) == len(labels.LABELS)


def test_no_name_is_of_two_metrics():
    shown = Counter(labels.label_among(metric, ()) for metric in labels.LABELS)
    assert [name for name, count in shown.items() if count > 1] == []


def test_names_are_of_metrics():
    for names in (labels.LABELS, labels.WITHIN, labels._ALONE, labels.SHORT):
        assert names.keys() <= METRICS.keys()


def named_elsewhere(text: str) -> set[str]:
    """Metrics with a name of their own in a module, keys of a dictionary of texts."""
    return {
        key.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in labels.LABELS
        if any(
            isinstance(part, ast.Constant) and " " in str(part.value) for part in ast.walk(value)
        )
    }


def test_nobody_else_names_them():
    rooms = ("analysis", "report", "tensorboard", "verdict")
    files = (path for room in rooms for path in sorted((SOURCE / room).glob("*.py")))
    found = {path.name: names for path in files if (names := named_elsewhere(path.read_text()))}
    assert not found
    assert named_elsewhere('{"net/sent_bytes": "sent away", "net/received_bytes": 1}') == {
        "net/sent_bytes"
    }
