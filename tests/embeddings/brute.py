"""What lookups amount to, counted one by one."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch

from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.steps.closed_step import ClosedStep

STEP_NS = 10_000_000


class Steps:
    """A step clock by hand."""

    def __init__(self):
        self.serial = 0

    def begin(self):
        self.serial += 1

    def closed(self, first=1, epoch=0):
        """All steps that were begun, from the one with serial `first`."""
        return [
            ClosedStep.from_numbers(serial, serial - 1, (0, STEP_NS), epoch=epoch)
            for serial in range(first, self.serial + 1)
        ]


def hooked(model, every=1):
    """The lookups of a model that is watched, and its steps, of which one has begun."""
    steps = Steps()
    steps.begin()
    return ModelLookups(model, lambda: steps.serial, every=every), steps


@dataclass
class Expected:
    """One table in one step."""

    ids: list[int] = field(default_factory=list)
    bags: int = 0

    def add(self, bags: list[list[int]], padding: int | None = None) -> None:
        self.bags += len(bags)
        for bag in bags:
            for row in bag:
                if row != padding:
                    self.ids.append(row)

    @property
    def counts(self) -> Counter:
        return Counter(self.ids)


def bags_of(ids: torch.Tensor, ends: list[int]) -> list[list[int]]:
    """Ids of each bag, of bags that end at `ends`."""
    bags, begin = [], 0
    for end in ends:
        bags.append([int(ids[at]) for at in range(begin, end)])
        begin = end
    return bags


def jagged_bags(kjt) -> dict[str, list[list[int]]]:
    """Feature -> bags, read one number at a time."""
    bags: dict[str, list[list[int]]] = {}
    lengths, values = kjt.lengths().tolist(), kjt.values().tolist()
    at = bag = 0
    for key, stride in zip(kjt.keys(), kjt.stride_per_key(), strict=True):
        bags[key] = []
        for _ in range(stride):
            bags[key].append(values[at : at + lengths[bag]])
            at += lengths[bag]
            bag += 1
    assert at == len(values)
    return bags


def random_lengths(count: int) -> torch.Tensor:
    """Lengths of bags, many of them empty, and now and then all of them."""
    if torch.rand(()) < 0.15:
        return torch.zeros(count, dtype=torch.int64)
    return torch.randint(0, 5, (count,)) * (torch.rand(count) < 0.7)


def compare(lookups: ModelLookups, rows, expected: dict[tuple[int, str], Expected]) -> None:
    """Rows of a run with `every=1` say what was counted one by one."""
    names = [table.name for table in lookups.tables]
    got = {(int(row["step"]), names[row["table"]]): row for row in rows}
    assert len(got) == len(rows)
    assert set(got) == {key for key, one in expected.items() if one.bags}
    for (step, name), one in expected.items():
        if not one.bags:
            continue
        row, table = got[step, name], lookups.tables[names.index(name)]
        assert row["sampled"]
        assert row["lookup_count"] == len(one.ids)
        assert row["bag_count"] == one.bags
        assert row["bytes"] == len(one.ids) * table.row_bytes
        inside = {i for i in one.counts if 0 <= i < table.row_count}
        assert row["unique_rows"] == len(inside)
        assert row["outside_count"] == sum(n for i, n in one.counts.items() if i not in inside)
    totals: dict[str, Counter] = {name: Counter() for name in names}
    for (_, name), one in expected.items():
        totals[name] += one.counts
    for table in lookups.tables:
        counts = lookups.counts.counts(table.name)
        inside = {i: n for i, n in totals[table.name].items() if 0 <= i < table.row_count}
        assert {i: int(n) for i, n in enumerate(counts) if n} == inside


def same(a: float, b: float) -> bool:
    """Equal, or neither known."""
    return a == b or (math.isnan(a) and math.isnan(b))
