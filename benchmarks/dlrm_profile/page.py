"""What docs/dlrm-profile.md has between its markers; the words around it are by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.page import fill

PAGE = Path(__file__).parents[2] / "docs" / "dlrm-profile.md"
MiB = 1 << 20
BUSY = 0.5  # load from which other work takes a core that a rank needs
BUSY_NOTE = (
    "**Other work ran beside it.** It takes time from all parts, so that they are too long, and "
    "one rank and two do not compare. Counted numbers are as they are on a quiet machine."
)


def update(results: dict[str, Any], source: Path) -> None:
    """Put the results into the page."""
    fill(PAGE, render(results, source))


def render(results: dict[str, Any], source: Path) -> str:
    """Return the tables and pictures as Markdown."""
    machine = results["machine"]
    head = (
        f"Measured {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}, torch {results['torch']}, one thread a rank, "
        f"{results['measured_steps']} steps of {results['batch_size']:,} inputs a rank, the "
        f"shortest of {results['rounds']} rounds, tables of "
        f"{results['rows_scale']:g} times Kaggle's rows, {results['dim']} float32 values a row; "
        f"load before it began: {results['load_before']:.1f}. All numbers: "
        f"[{source.name}](../benchmarks/results/{source.name})."
    )
    if results["load_before"] > BUSY:
        head += f"\n\n{BUSY_NOTE}"
    blocks = [head, "### Compute and memory", _work(results), _image("roofs")]
    blocks += ["### Where a step goes", _steps(results), _image("parts")]
    blocks += ["### How skewed the lookups are", _skew(results["skew"]), _image("skew")]
    blocks += ["### What hot rows would serve", _budgets(results["skew"])]
    return "\n\n".join(blocks)


def _image(name: str) -> str:
    alt = {
        "roofs": "Operations a second of each part, under the machine's roofs",
        "parts": "Time of a step by part, for one and two ranks",
        "skew": "Share of lookups that the hottest rows of each table serve",
    }
    return f"![{alt[name]}](images/dlrm-{name}.png)"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _work(results: dict[str, Any]) -> str:
    limits, times = results["limits"], results["steps"][0]["parts_ms"]
    rows = []
    for part, work in results["work"].items():
        flops, moved, ms = work["flops"], work["moved_bytes"], times[part]
        rows.append(
            [
                part,
                f"{flops / 1e6:,.1f} M",
                f"{moved / MiB:,.1f} MiB",
                f"{flops / moved:.2g}",
                f"{ms:.1f} ms",
                f"{flops / ms / 1e6:.2g}",
                f"{moved / ms / 1e6:.2g}",
            ]
        )
    head = ["part, a step", "operations", "moved", "operations / byte", "time", "GFLOP/s", "GB/s"]
    balance = limits["gflop_per_s"] / limits["copied_gb_per_s"]
    roofs = (
        f"One core here multiplies matrices at {limits['gflop_per_s']:.0f} GFLOP/s, copies memory "
        f"at {limits['copied_gb_per_s']:.1f} GB/s (reads and writes together) and random rows of "
        f"64 bytes out of 1 GiB at {limits['random_rows_gb_per_s']:.1f} GB/s: below {balance:.1f} "
        "operations a byte it is memory that bounds."
    )
    return f"{_table(head, rows)}\n\n{roofs}"


def _steps(results: dict[str, Any]) -> str:
    steps = results["steps"]
    names = list(dict.fromkeys(part for step in steps for part in step["parts_ms"]))
    head = ["ms of a step"] + [
        f"tables on CPUs, {step['world_size']} rank{'s' * (step['world_size'] > 1)}"
        for step in steps
    ]
    rows = []
    for part in names:
        cells = []
        for step in steps:
            ms = step["parts_ms"].get(part, 0.0)
            cells.append(f"{ms:.1f} ({ms / sum(step['parts_ms'].values()):.0%})")
        rows.append([part, *cells])
    rows.append(["whole step, profiled", *(f"{step['profiled_step_ms']:.1f}" for step in steps)])
    rows.append(["whole step, not profiled", *(f"{step['step_ms']:.1f}" for step in steps)])
    return f"{_table(head, rows)}\n\nTables on a GPU: not measured yet."


def _skew(skew: dict[str, Any]) -> str:
    head = [
        "table",
        "rows",
        "looked up",
        "1 % serve",
        "10 % serve",
        "rows for 90 %",
        "Zipf exponent",
    ]
    rows = []
    for table in skew["tables"]:
        exponent, low, high = table["zipf"]
        one, ten = table["served_by_share"]
        rows.append(
            [
                table["table"],
                f"{table['row_count']:,}",
                f"{table['rows_seen']:,}",
                f"{one:.0%}" if table["row_count"] >= 100 else "",
                f"{ten:.0%}" if table["row_count"] >= 10 else "",
                f"{table['rows_for_90_percent']:,.0f}",
                "" if math.isnan(exponent) else f"{exponent:.2f} ({low:.2f} to {high:.2f})",
            ]
        )
    return f"{skew['inputs']:,} made-up inputs.\n\n{_table(head, rows)}"


def _budgets(skew: dict[str, Any]) -> str:
    head = ["hottest rows of all tables that fit", "rows", "inputs that look up these only"]
    rows = []
    for budget in skew["budgets"]:
        share, low, high = budget["all_hot_share"]
        cells = [
            f"{budget['mib']} MiB",
            f"{budget['rows']:,}",
            f"{share:.1%} ({low:.1%} to {high:.1%})",
        ]
        rows.append(cells)
    return (
        f"{_table(head, rows)}\n\nThe rows are chosen by the counts above, and tried on "
        f"{skew['budgets'][0]['inputs']:,} inputs that come after. Where a budget is not filled, "
        "it holds every row that was looked up."
    )
