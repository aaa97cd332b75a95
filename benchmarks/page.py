"""The table in docs/performance.md, between two markers; the words around it are by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def update(results: dict[str, Any], source: Path) -> None:
    """Put the results into the page."""
    fill(PAGE, table(results, source))


def fill(page: Path, text: str, name: str = "measured") -> None:
    """Put `text` between the markers of that name in a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def table(results: dict[str, Any], source: Path) -> str:
    """Markdown table of one set of results."""
    machine = results["machine"]
    lines = [
        f"Measured {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}, Python {machine['python']}; all numbers: "
        f"[{source.name}](../benchmarks/results/{source.name}).",
        "",
        "| what | measured | aim |",
        "|---|---|---|",
    ]
    return "\n".join(lines + [f"| {a} | {b} | {c} |" for a, b, c in _rows(results)])


def _rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    hot, probes, observe = results["hot_path"], *results["startup"].values()
    bags, sharded = results["lookups"]["bags"], results["lookups"]["sharded"]
    python_us = hot["step_main_thread_us"] + hot["step_observer_thread_us"]
    return [
        _ratio("ImageNet example, Lightning", results["imagenet"], "1.01"),
        _ratio("4 KiB files, plain loop", results["small_files"], "1.05"),
        _ratio("DLRM, 26 bags: lookups by shapes", bags["shapes"], "1.005"),
        _ratio("DLRM, 26 bags: lookups, sampled", bags["automatic"], "1.02"),
        _ratio("DLRM, sharded: lookups by shapes", sharded["shapes"], "1.005"),
        _ratio("DLRM, sharded: lookups, sampled", sharded["automatic"], "1.02"),
        ("probes: load, attach, register", f"{probes['ms']} ms", "150 ms"),
        ("probes: memory kept / peak", f"{probes['rss_mib']} / {probes['peak_mib']} MiB", "25 MB"),
        ("`observe`: everything, its imports included", f"{observe['ms']} ms", ""),
        ("`observe`: memory kept", f"{observe['rss_mib']} MiB", ""),
        ("one mark", f"{hot['mark_ns']} ns", ""),
        ("one switch of phase", f"{hot['phase_switch_ns']} ns", ""),
        ("one step, training thread", f"{hot['step_main_thread_us']} us", ""),
        ("one step, observer thread", f"{hot['step_observer_thread_us']} us", ""),
        ("one step, Python together", f"{python_us:.1f} us", "50 us"),
        ("under Lightning: hooks and tee", f"{hot['lightning_hooks_us_per_step']} us a step", ""),
        (
            "under Lightning: any callback, doing nothing",
            f"{hot['lightning_idle_callback_us_per_step']} us a step",
            "",
        ),
        ("run log", f"{hot['run_log_bytes_per_step']} bytes a step", "300 bytes"),
        ("a followed 64-byte pread", f"+{hot['pread_tracked_extra_ns']} ns", ""),
        ("any followed kind of call of others", f"+{hot['pread_untracked_extra_ns']} ns", ""),
    ]


def _ratio(name: str, found: dict[str, Any], aim: str) -> tuple[str, str, str]:
    ratio = found["ratio_of_mean_steps"]
    return (
        f"{name}, step of {found['step_us_without'] / 1e3:.1f} ms",
        f"{ratio['median']} ({ratio['quartile1']} to {ratio['quartile3']}, {found['pairs']} pairs)",
        aim,
    )
