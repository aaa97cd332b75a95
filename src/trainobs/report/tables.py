"""The report's sections on embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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


def section(summary: dict[str, Any]) -> Iterator[str]:
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


def _table(summary: dict[str, Any], name: str, label: str, read: float) -> str:
    lookups, volume = _mean(summary, "lookup_count", name), _mean(summary, "bytes", name)
    ratios = ("duplicate_ratio", "hottest_1pct_ratio", "hottest_10pct_ratio")
    return _row(
        f"  {label}",
        or_unknown(quantity, lookups),
        or_unknown(size, volume),
        or_unknown(percent, volume and volume / read),
        *(or_unknown(percent, _mean(summary, ratio, name)) for ratio in ratios),
    )


def _about(found: dict[str, Any]) -> Iterator[str]:
    rows = sum(table["row_count"] for table in found["tables"])
    total = sum(table["row_count"] * table["row_bytes"] for table in found["tables"])
    placed = sorted({table["placement"] for table in found["tables"]})
    amount = f"{counted(len(found['tables']), 'table')}, {quantity(rows)} rows, {size(total)}"
    yield f"  {amount}: {', '.join(placed)}"
    sampled = f"{found['sampled_steps']} of {found['steps']} steps"
    yield f"  repeated and hot rows, and all below: from the ids of {sampled}"
    yield from _timed(found["time"])


def _timed(time: dict[str, Any]) -> Iterator[str]:
    by_bytes = time["by_bytes"]
    if time["forward_ratio"] is not None:
        share = f"{duration(time['forward_ns'])}, {_share_of_step(time)}"
        yield f"  forward of the modules that look up: {share}; backward and optimizer not in it"
    if by_bytes["known"]:
        low, high = percent(by_bytes["low_ratio"]), percent(by_bytes["high_ratio"])
        share = f"{percent(by_bytes['ratio'])} ({low} to {high})"
        yield f"  share of the step that grows with the bytes they read, lookups or not: {share}"
    else:
        yield "  share of the step that grows with the bytes they read: not known:"
        yield f"    {by_bytes['why']}"


def _share_of_step(time: dict[str, Any]) -> str:
    """Sampled steps may be slower than the others, so that it comes to more than a mean step."""
    ratio = time["forward_ratio"]
    return f"{percent(ratio)} of the step" if ratio <= 1 else "as much as a mean step"


def _skewed(found: dict[str, Any], labels: dict[str, str]) -> Iterator[str]:
    skews = found["skew"]["tables"] if found["skew"] else {}
    row_bytes = {table["name"]: table["row_bytes"] for table in found["tables"]}
    if not any(name in skews for name in labels):
        return
    yield ""
    yield _row("Skew of lookups", "Zipf", "from", "to", "rows: 50 %", "90 %", "in bytes")
    for name in (name for name in labels if name in skews):
        law, rows = skews[name]["zipf"], skews[name]["working_set"]
        yield _row(
            f"  {labels[name]}",
            *(or_unknown("{:.2f}".format, law[key]) for key in ("exponent", "low", "high")),
            *(or_unknown(quantity, rows[share]) for share in ("0.5", "0.9")),
            or_unknown(size, rows["0.9"] and rows["0.9"] * row_bytes[name]),
        )
    if found["skew"].get("of_some_steps"):
        yield "  rows, and their bytes: at least, since other steps look up others"
        for why in sorted({skews[name]["zipf"]["why"] or "" for name in labels if name in skews}):
            yield from paragraph(f"Zipf not known: {why}", "  ", "    ") if why else ()


def _budgets(found: dict[str, Any]) -> Iterator[str]:
    # In a budget smaller than a row there is nothing to keep.
    budgets = [one for one in (found["skew"] or {}).get("budgets", ()) if one["holds_rows"]]
    if not budgets:
        return
    yield ""
    bounds = ("value", "low", "high")
    heads = ("of tables", "lookups", "from", "to", "inputs", "from", "to")
    yield _row("Hottest rows that fit", *heads, width=_BUDGET)
    for one in budgets:
        lookups, inputs = one.get("lookups") or {}, one["all_hot"] or {}
        yield _row(
            f"  {size(one['budget_bytes'])}",
            percent(one["table_ratio"]),
            or_unknown(percent, one["lookup_ratio"]),
            *(or_unknown(percent, lookups.get(key)) for key in bounds[1:]),
            *(or_unknown(percent, inputs.get(key)) for key in bounds),
            width=_BUDGET,
        )
    yield "  inputs: those all of whose lookups are of these rows"
    for why in sorted({one["why"] for one in budgets if one.get("why")}):
        yield from paragraph(f"not known: {why}", "  ", "    ")
    yield from (_drifted(one) for one in found["skew"]["drift"])


def _drifted(drift: dict[str, Any]) -> str:
    low, value, high = (f"{100 * drift[key]:.2g}" for key in ("low", "value", "high"))
    if drift["low"] <= 0:
        between = f"from epoch {drift['from']} to {drift['to']}"
        return f"  of the hot rows, no drift is seen {between} ({low} % to {high} % of lookups)"
    return (
        f"  of 100 lookups of epoch {drift['to']}, hot rows of epoch {drift['from']} serve {value} "
        f"({low} to {high}) fewer than its own"
    )


def _memory(summary: dict[str, Any]) -> Iterator[str]:
    means = {name: summary["metrics"][name]["mean"] for name in _MEMORY}
    if any(means.values()):
        yield ""
        yield "Host memory, where tables are, in a step"
        for name, mean in means.items():
            if mean:
                yield row(f"  {label_of(name)}", _MEMORY[name](mean), width=_LABEL + 8)


def _mean(summary: dict[str, Any], field: str, table: str) -> float | None:
    statistics = summary["metrics"].get(f"embedding/{field}{{table={table}}}", {})
    mean: float | None = statistics.get("mean")
    return mean


def _row(label: str, *columns: str, width: int = _LABEL) -> str:
    return row(label, *columns, width=width)
