"""The tables in docs/performance.md, between two markers; the words around it are by hand."""

from __future__ import annotations

from collections.abc import Iterator
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


def filled(page: Path, name: str = "measured") -> str:
    """What is between the markers of that name in a page."""
    rest = page.read_text().split(f"<!-- {name}: begin -->")[1]
    return rest.split(f"<!-- {name}: end -->")[0].strip("\n")


def table(results: dict[str, Any], source: Path) -> str:
    """Markdown tables of one set of results."""
    machine = results["machine"]
    lines = [
        f"Measured {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}, Python {machine['python']}, in "
        f"{sum(results['seconds'].values()) / 60:.0f} minutes, load {results['load_before']:.1f} "
        f"before it; all numbers: [{source.name}](../benchmarks/results/{source.name}).",
        "",
        "| loop, CPU time of its step | training thread | process | bare again | ratio | aim |",
        "|---|---|---|---|---|---|",
        *(_row(*cells) for cells in _loops(results)),
        "",
        "| what | measured | aim |",
        "|---|---|---|",
        *(_row(*cells) for cells in _rows(results)),
    ]
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _loops(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    light, bags = results["light"], results["lookups"]["bags"]
    sharded = results["lookups"]["sharded"]
    yield _loop("plain, light", light["plain"], "observed", "5 us; 1.03")
    yield _loop("Lightning, light", light["lightning"], "observed", "12 us beyond the empty one")
    yield _loop("Lightning, light: without probes", light["lightning"], "probes off", "")
    yield _loop(
        "Lightning, light: a callback that is empty", light["lightning"], "idle callback", ""
    )
    yield _loop("plain, 4 KiB files, with two workers", results["small_files"], "observed", "1.05")
    yield _loop("ImageNet example, Lightning", results["imagenet"], "observed", "1.01")
    yield _loop("DLRM, 26 bags: lookups by shapes", bags["shapes"], "observed", "1.005")
    yield _loop("DLRM, 26 bags: lookups, sampled", bags["automatic"], "observed", "1.02")
    yield _loop("DLRM, sharded: lookups by shapes", sharded["shapes"], "observed", "1.005")
    yield _loop("DLRM, sharded: lookups, sampled", sharded["automatic"], "observed", "1.02")


def _loop(name: str, found: dict[str, Any], arm: str, aim: str) -> tuple[str, ...]:
    step_us = found["bare"]["process_us"]["median"]
    thread, process = found[arm]["thread_us"], found[arm]["process_us"]
    again = _added(found["again"]["process_us"])
    return (
        f"{name}: {step_us / 1e3:.2f} ms",
        _added(thread),
        _added(process),
        again,
        f"{process['ratio']:.3f}" if process["decided"] else "not decided",
        aim,
    )


def _added(part: dict[str, Any]) -> str:
    """In us: median of the blocks, and the 95 % interval of it."""
    digits = 1 if abs(part["median"]) < 100 else 0
    middle, low, high = (f"{part[key]:+.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} us ({low} to {high})"


def _rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    hot, start, calls = results["hot_path"], results["startup"], results["system_calls"]
    probes, observe = start["probes"], start["observe"]
    return [
        ("`observe`: CPU time", f"{observe['cpu_ms']} ms", "150 ms"),
        ("of it the imports beyond torch's", f"{start['imports']['cpu_ms']} ms", ""),
        ("of it the probes: load, attach, register", f"{probes['cpu_ms']} ms", ""),
        ("the same in time", f"{observe['ms']} ms, probes {probes['ms']} ms", ""),
        ("the end of a run, with its imports: CPU time", f"{observe['stop_cpu_ms']} ms", ""),
        ("memory kept, as a run begins", f"{observe['started_mib']} MiB", ""),
        ("memory kept, once it is written", f"{observe['rss_mib']} MiB", "25 MB"),
        ("of it the probes, kept / peak", f"{probes['rss_mib']} / {probes['peak_mib']} MiB", ""),
        ("one mark", f"{hot['mark_ns']} ns", ""),
        ("one switch of phase", f"{hot['phase_switch_ns']} ns", ""),
        ("one step, training thread, two phases", f"{hot['step_main_thread_us']} us", ""),
        (
            "one step, observer thread, at 2 ms a step (least)",
            f"{hot['step_observer_thread_us']} us ({hot['step_observer_thread_least_us']})",
            "5 us",
        ),
        ("instructions a step, by valgrind", _instructions(results["instructions"]), ""),
        ("blocks of memory that a closed step holds", f"{hot['step_kept_blocks']}", ""),
        ("system calls a step of the training thread", _calls(calls), "no more than bare"),
        ("run log", f"{hot['run_log_bytes_per_step']} bytes a step", "330 bytes"),
        ("a followed 64-byte pread", f"+{hot['pread_tracked_extra_ns']} ns", ""),
        ("any followed kind of call of others", f"+{hot['pread_untracked_extra_ns']} ns", "60 ns"),
    ]


def _instructions(found: dict[str, Any]) -> str:
    if "not_counted" in found:
        return "not counted"
    training, observer = found["training_thread"], found["observer_thread"]
    return f"training thread {training:,}, observer thread {observer:,}"


def _calls(found: dict[str, Any]) -> str:
    if "bare" not in found:
        return "not counted"
    bare, observed = (found[mode]["training_thread_per_step"] for mode in ("bare", "observed"))
    by_name = found["observed"]["by_name"]
    waits = observed * by_name.get("futex", 0) / max(sum(by_name.values()), 1)
    return f"{bare:g} bare, {observed - waits:.2f} observed, and {waits:.2f} `futex`"
