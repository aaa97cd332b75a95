"""The report's sections on embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trainobs.analysis.summary import Summary, mean_of
from trainobs.analysis.tables.of_run import Embeddings, LookupTime
from trainobs.analysis.tables.skew import Bounds, Drift
from trainobs.core.labels import label_of
from trainobs.core.text import counted, duration, percent, quantity, size
from trainobs.report.rows import cut_names, or_unknown, paragraph, row

_LABEL = 34
_BUDGET = 23

_SHOWN = 40
"""Tables on the page: those that read the most bytes, of equal ones the largest."""

_MEMORY: Mapping[str, Callable[[float], str]] = {
    "memory/major_fault_count": "{:.2g}".format,
    "cache/fault_fill_bytes": size,
    "memory/reclaim_ns": duration,
    "memory/numa_remote_bytes": size,
    "pressure/memory_ns": duration,
}
"""What the kernel saw that tables in host memory may have to do with."""


def section(summary: Summary) -> Iterator[str]:
    """Which tables are looked up how much, how often the same rows, and what that comes to."""
    found = summary["embeddings"]
    if not found:
        return
    tables = {table["name"]: table for table in found["tables"]}
    read = {name: _mean(summary, "bytes", name) or 0.0 for name in tables}
    sizes = {name: table["row_count"] * table["row_bytes"] for name, table in tables.items()}
    largest = sorted(
        (name for name in tables if read[name]), key=lambda name: (-read[name], -sizes[name], name)
    )
    heads = ("lookups", "bytes", "of all", "repeated", "hot 1 %", "hot 10 %")
    yield _row("Embedding lookups in a step", *heads)
    labels = cut_names(largest[:_SHOWN], _LABEL - 3)
    for name, label in labels.items():
        yield _table(summary, name, label, sum(read.values()))
    if len(largest) > _SHOWN:
        yield f"  and {counted(len(largest) - _SHOWN, 'more table')}"
    if len(tables) > len(largest):
        yield f"  not seen to be looked up: {counted(len(tables) - len(largest), 'table')}"
    yield from _about(found)
    yield from _skewed(found, labels)
    yield from _budgets(found)
    if any(table["placement"].startswith(("host", "uvm")) for table in tables.values()):
        yield from _memory(summary)


def _table(summary: Summary, name: str, label: str, read: float) -> str:
    lookups, volume = _mean(summary, "lookup_count", name), _mean(summary, "bytes", name)
    ratios = ("duplicate_ratio", "hottest_1pct_ratio", "hottest_10pct_ratio")
    return _row(
        f"  {label}",
        or_unknown(quantity, lookups),
        or_unknown(size, volume),
        or_unknown(percent, volume and volume / read),
        *(or_unknown(percent, _mean(summary, ratio, name)) for ratio in ratios),
    )


def _about(found: Embeddings) -> Iterator[str]:
    rows = sum(table["row_count"] for table in found["tables"])
    total = sum(table["row_count"] * table["row_bytes"] for table in found["tables"])
    placed = sorted({table["placement"] for table in found["tables"]})
    amount = f"{counted(len(found['tables']), 'table')}, {quantity(rows)} rows, {size(total)}"
    yield f"  {amount}: {', '.join(placed)}"
    sampled = f"{found['sampled_steps']} of {found['steps']} steps"
    yield f"  repeated and hot rows, and all below: from the ids of {sampled}"
    yield from _timed(found["time"])


def _timed(time: LookupTime) -> Iterator[str]:
    by_bytes = time["by_bytes"]
    if time["forward_ns"] is not None and time["forward_ratio"] is not None:
        share = f"{duration(time['forward_ns'])}, {_share_of_step(time['forward_ratio'])}"
        yield f"  forward of the modules that look up: {share}; backward and optimizer not in it"
    if by_bytes["known"]:
        low, high = percent(by_bytes["low_ratio"]), percent(by_bytes["high_ratio"])
        share = f"{percent(by_bytes['ratio'])} ({low} to {high})"
        yield f"  share of the step that grows with the bytes they read, lookups or not: {share}"
    else:
        yield "  share of the step that grows with the bytes they read: not known:"
        yield f"    {by_bytes['why']}"


def _share_of_step(ratio: float) -> str:
    """Sampled steps may be slower than the others, so that it comes to more than a mean step."""
    return f"{percent(ratio)} of the step" if ratio <= 1 else "as much as a mean step"


def _skewed(found: Embeddings, labels: dict[str, str]) -> Iterator[str]:
    skews = found["skew"]["tables"] if found["skew"] else {}
    shown = {name: skews[name] for name in labels if name in skews}
    if not found["skew"] or not shown:
        return
    row_bytes = {table["name"]: table["row_bytes"] for table in found["tables"]}
    yield ""
    yield _row("Skew of lookups", "Zipf", "from", "to", "rows: 50 %", "90 %", "in bytes")
    for name, one in shown.items():
        law, rows = one["zipf"], one["working_set"]
        exponents = (law["exponent"], law["low"], law["high"])
        yield _row(
            f"  {labels[name]}",
            *(or_unknown("{:.2f}".format, exponent) for exponent in exponents),
            *(or_unknown(quantity, rows[share]) for share in ("0.5", "0.9")),
            or_unknown(size, rows["0.9"] and rows["0.9"] * row_bytes[name]),
        )
    if found["skew"]["of_some_steps"]:
        yield "  rows, and their bytes: at least, since other steps look up others"
        for why in sorted({why for one in shown.values() if (why := one["zipf"]["why"])}):
            yield from paragraph(f"Zipf not known: {why}", "  ", "    ")


def _budgets(found: Embeddings) -> Iterator[str]:
    skew = found["skew"]
    # In a budget smaller than a row there is nothing to keep.
    budgets = [one for one in skew["budgets"] if one["holds_rows"]] if skew else []
    if not skew or not budgets:
        return
    yield ""
    heads = ("of tables", "lookups", "from", "to", "inputs", "from", "to")
    yield _row("Hottest rows that fit", *heads, width=_BUDGET)
    for one in budgets:
        lookups, inputs = one["lookups"], one["all_hot"] or _NO_INPUTS
        of_lookups = (one["lookup_ratio"], lookups["low"], lookups["high"])
        shares = (*of_lookups, inputs["value"], inputs["low"], inputs["high"])
        yield _row(
            f"  {size(one['budget_bytes'])}",
            percent(one["table_ratio"]),
            *(or_unknown(percent, share) for share in shares),
            width=_BUDGET,
        )
    yield "  inputs: those all of whose lookups are of these rows"
    for why in sorted({one["why"] for one in budgets if one["why"]}):
        yield from paragraph(f"not known: {why}", "  ", "    ")
    yield from map(_drifted, skew["drift"])


_NO_INPUTS: Bounds = {"value": None, "low": None, "high": None}


def _drifted(drift: Drift) -> str:
    low, value, high = (
        f"{100 * share:.2g}" for share in (drift["low"], drift["value"], drift["high"])
    )
    if drift["low"] <= 0:
        between = f"from epoch {drift['from']} to {drift['to']}"
        return f"  of the hot rows, no drift is seen {between} ({low} % to {high} % of lookups)"
    return (
        f"  of 100 lookups of epoch {drift['to']}, hot rows of epoch {drift['from']} serve {value} "
        f"({low} to {high}) fewer than its own"
    )


def _memory(summary: Summary) -> Iterator[str]:
    means = {name: summary["metrics"][name]["mean"] for name in _MEMORY}
    if any(means.values()):
        yield ""
        yield "Host memory, where tables are, in a step"
        for name, mean in means.items():
            if mean:
                yield row(f"  {label_of(name)}", _MEMORY[name](mean), width=_LABEL + 8)


def _mean(summary: Summary, field: str, table: str) -> float | None:
    return mean_of(summary, f"embedding/{field}{{table={table}}}")


def _row(label: str, *columns: str, width: int = _LABEL) -> str:
    return row(label, *columns, width=width)
