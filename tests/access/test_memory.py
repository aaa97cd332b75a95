"""The default budget holds whatever the tables are, measured from outside: the process's memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, tempfile
import numpy as np
from trainobs.access import AccessCounts

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024

def work(tables, rounds, **budget):
    random = np.random.default_rng(0)
    ids, lengths = np.empty(20_480, np.int64), np.ones((len(tables), 512), np.int64)
    inputs = np.zeros(len(tables) * 512, np.int64)
    counts = AccessCounts(tables, **budget)
    for number in range(rounds):
        for name, rows in tables.items():
            ids[:] = random.integers(0, rows, 20_480)
            counts.add(name, ids)
        counts.add_inputs(list(tables), inputs, lengths, epoch=number // 40)
    with tempfile.TemporaryDirectory() as folder:
        counts.save(folder + "/counts.npz")
    for name in tables:
        counts.hottest(name, 1000)
        counts.spectrum(name)
    return counts

tables, rounds, budget = json.loads(sys.argv[1])
work({"warm up": 10}, 2, budget_bytes=10**5)
before = status("VmRSS:")
counts = work(tables, rounds, **budget)
print(json.dumps([status("VmHWM:") - before, [counts.error(name) for name in tables]]))
"""

TABLES = {
    "100 million rows": ({"t": 100_000_000}, 250),
    "half exact": ({"small": 4_000_000, "large": 100_000_000}, 160),
    "all exact": ({"a": 6_000_000, "b": 6_000_000}, 160),
    "many tables": ({f"t{at}": 10**7 for at in range(850)}, 1),
}


def peak(tables, rounds, **budget) -> tuple[int, list[int]]:
    """Bytes by which the process grew at most, and the errors of the tables."""
    arguments = json.dumps([tables, rounds, budget])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments], capture_output=True, text=True, check=True
    )
    grown, errors = json.loads(done.stdout)
    return grown, errors


@pytest.mark.parametrize("case", TABLES)
def test_counting_saving_and_reading_stay_within_64_mib(case):
    grown, errors = peak(*TABLES[case])
    assert 20 << 20 < grown <= 64 << 20
    assert (max(errors) > 0) == (case != "all exact")


def test_more_would_be_seen():
    grown, _ = peak(*TABLES["100 million rows"], budget_bytes=128 << 20)
    assert grown > 70 << 20
