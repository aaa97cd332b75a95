"""How unevenly the made-up inputs look the tables up, by trainobs' own counts."""

from __future__ import annotations

from typing import Any

from benchmarks.dlrm_profile.example import columns, synthetic
from trainobs.access import AccessCounts
from trainobs.access.hot import all_hot_share, hot_rows
from trainobs.access.skew import access_curve, served_share, working_set_rows, zipf

COUNTING_BYTES = 512 << 20  # exact counts of all rows that a million inputs can look up
SHARES = (0.01, 0.1)
BUDGETS_MIB = (16, 64, 256, 512)
TESTED_CHUNKS = 32


def measure(inputs: int, rows_scale: float, dim: int) -> dict[str, Any]:
    """Return what the lookups of each table are like, and what hot rows serve of other inputs."""
    rows = columns.table_rows(rows_scale)
    tables = dict(zip(columns.CATEGORIES, rows, strict=True))
    generator = synthetic.Generator(rows, 0)
    chunks = inputs // synthetic.CHUNK
    counts = count(generator, tables, range(chunks))
    others = count(generator, tables, range(chunks, chunks + TESTED_CHUNKS))
    described = [describe(counts, name) for name in tables]
    return {
        "inputs": chunks * synthetic.CHUNK,
        "tables": sorted(described, key=lambda table: -table["row_count"]),
        "budgets": [hot(counts, others, mib, dim) for mib in BUDGETS_MIB],
    }


def count(generator: synthetic.Generator, tables: dict[str, int], chunks: range) -> AccessCounts:
    """Return the counts of some inputs, with a sample of them."""
    counts = AccessCounts(tables, budget_bytes=COUNTING_BYTES, seed=0)
    for chunk in chunks:
        _, _, ids = generator.chunk(chunk)
        for name, of_table in zip(tables, ids, strict=True):
            counts.add(name, of_table)
        counts.add_inputs(list(tables), ids.ravel(), (ids >= 0).astype(int))
    return counts


def describe(counts: AccessCounts, name: str) -> dict[str, Any]:
    """Return the skew of one table."""
    spectrum, row_count = counts.spectrum(name), counts.tables[name]
    exponent = zipf(spectrum).exponent
    rows, shares = access_curve(spectrum, 60)
    return {
        "table": name,
        "row_count": row_count,
        "rows_seen": int(spectrum.rows.sum()),
        "served_by_share": [
            float(served_share(spectrum, max(1, share * row_count)).low) for share in SHARES
        ],
        "rows_for_90_percent": working_set_rows(spectrum, 0.9),
        "zipf": [exponent.value, exponent.low, exponent.high],
        "count_error": spectrum.error,
        "curve": [(rows / row_count).tolist(), shares.low.tolist()],
    }


def hot(counts: AccessCounts, others: AccessCounts, mib: int, dim: int) -> dict[str, Any]:
    """Return what the hottest rows of `counts` that fit a budget serve of the other inputs."""
    row_bytes = dict.fromkeys(counts.tables, 4 * dim)
    rows = hot_rows(counts, row_bytes, mib << 20)
    (sample,) = others.inputs().values()
    share = all_hot_share(sample, others.tables, rows)
    return {
        "mib": mib,
        "rows": sum(map(len, rows.values())),
        "all_hot_share": [share.value, share.low, share.high],
        "inputs": len(sample),
    }
