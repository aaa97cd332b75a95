"""What was looked up, one by one, and whether access counts agree with it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from trainobs.access import AccessCounts, Sketch


class Truth:
    """Counts by a `Counter` a table."""

    def __init__(self, tables):
        self.tables = dict(tables)
        self.rows = {name: Counter() for name in tables}
        self.outside = Counter()

    def add(self, table, ids):
        for row in ids.tolist():
            if 0 <= row < self.tables[table]:
                self.rows[table][row] += 1
            else:
                self.outside[table] += 1

    def merge(self, other):
        for name, rows in other.rows.items():
            self.rows.setdefault(name, Counter()).update(rows)
        self.tables.update(other.tables)
        self.outside.update(other.outside)


def check(counts: AccessCounts, truth: Truth) -> None:
    """Every number is right: exact what is called exact, inside its bound what has one."""
    assert counts.tables == truth.tables
    for name, rows in truth.rows.items():
        assert counts.total(name) == sum(rows.values())
        assert counts.outside(name) == truth.outside[name]
        found = counts.counts(name)
        if isinstance(found, Sketch):
            _check_sketch(found, rows)
        else:
            assert found.dtype == np.uint64
            assert found.tolist() == [rows[row] for row in range(truth.tables[name])]
        ids, highest = counts.hottest(name, 3)
        known = dict(_pairs(found))
        assert highest.tolist() == sorted(known.values(), reverse=True)[: len(ids)]
        assert [known[row] for row in ids.tolist()] == highest.tolist()
        assert len(ids) == min(3, len(known))


def _check_sketch(sketch: Sketch, rows: Counter) -> None:
    assert sketch.total == sum(rows.values())
    assert (np.diff(sketch.ids) > 0).all()
    kept = dict(_pairs(sketch))
    for row, count in rows.items():
        assert kept.get(row, 0) <= count <= kept.get(row, 0) + sketch.error
    assert kept.keys() <= rows.keys()


def _pairs(found):
    if isinstance(found, Sketch):
        return zip(found.ids.tolist(), found.counts.tolist(), strict=True)
    return ((row, count) for row, count in enumerate(found.tolist()) if count)
