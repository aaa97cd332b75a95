"""The brief report's lines on one subject each: loader, storage, tables, ranks, GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainobs.analysis.batches.workers import Loader
from trainobs.analysis.io.data_reads import HEADERS
from trainobs.analysis.io.unnamed_reads import told_of
from trainobs.analysis.step_time import TAKING
from trainobs.analysis.summary import Summary, mean_of
from trainobs.core.labels import SHORT, label_of
from trainobs.core.text import counted, duration, percent, quantity, size
from trainobs.report import own_counters
from trainobs.report.loaders import DID, did
from trainobs.report.losses import killed
from trainobs.report.rank_rows import endings, late_because, straggler_told
from trainobs.report.rows import statement

_WAIT = "loader/wait_ns"
_LITTLE = 0.01
"""Share of the time of a run below which nobody is told of stops."""

_STOPS = (
    (
        "sched/main_stopped_ns",
        "Stopped: a signal (SIGSTOP, Ctrl-Z), or a debugger or strace, kept the training thread "
        "from going on",
    ),
    ("sched/frozen_ns", "Frozen: the control group of the run, as by docker pause,"),
)
"""Metric, and what is told of it before the time."""

_NOTABLE = 0.05
"""Share of the step from which it matters why the loader is waited for."""

_HANDOVER, _START = "loader/handover_ns", "loader/start_stop_ns"

_WAITED = {
    **{f"loader/{name}": label for name, label in DID.items()},
    _HANDOVER: label_of(_HANDOVER).strip(),
}
"""What who made the awaited batch did meanwhile."""

_HALF = 0.5
"""Share of the wait from which on it is for batches that are made and not yet received."""

_CAUSES = 2
"""Shares that a line has room for."""

_LEAST = 0.005
"""Share below which a cause is left out."""

_SERVED = 0.01
"""Share of the lookups that the hottest rows have to serve for a line about them: a budget for one
row of each table may serve next to none."""

_HELD = (
    "gpu/throttle_power_ratio",
    "gpu/throttle_thermal_ratio",
    "gpu/throttle_hardware_ratio",
)


def loader_and_storage(summary: Summary, most: int) -> Iterator[str]:
    """Who made the batches, why they were waited for, and where the data came from.

    Args:
        summary: of the run.
        most: lines for each.
    """
    for line in _loader(summary):
        yield from statement(line, most)
    step = summary["step"]
    begin = "Storage, first step included: " if step and step["first_is_out"] else "Storage: "
    for line in _storage(summary):
        yield from statement(begin + line, most)
        begin = "  "


def others(summary: Summary, most: int) -> Iterator[str]:
    """What only some runs have, in at most so many lines each."""
    of_it = (_checkpoints, _tables, _hot_rows, own_counters.brief, _ranks, _gpu)
    for tell in (_killed, _stopped, *of_it):
        for line in tell(summary):
            yield from statement(line, most)


def _killed(summary: Summary) -> Iterator[str]:
    if told := killed(summary):
        yield f"Out of memory: {told}"


def _stopped(summary: Summary) -> Iterator[str]:
    """How long somebody kept the training from going on, before its first step included."""
    for metric, told in _STOPS:
        stopped = summary["metrics"][metric]["sum"] or 0.0
        if stopped >= _LITTLE * summary["training_ns"] > 0.0:
            yield f"{told} for {duration(stopped)}"


def _loader(summary: Summary) -> Iterator[str]:
    found, step = summary["loader"], summary["step"]
    if found:
        worked = [counted(found["workers"], "worker")] if found["workers"] else []
        who = " and ".join(worked + ["the training thread"] * found["in_main"])
        made = f"{who} made {counted(found['batches'] + found['of_no_step'], 'batch', 'batches')}"
        if not found["are_all"]:
            of = f"{found['got']:,}" if found["got"] else "its"
            made = f"of {of} batches {found['batches']:,} are known, made by {who}"
        elif found["of_no_step"]:
            made += f"; {quantity(found['batches'])} of known steps"
        made += "" if found["made_ns"] is None else f", {duration(found['made_ns'])} each"
        most = 1 if found["of_no_step"] else _CAUSES
        yield f"Loader: {made}{_shares(': ', did(found), found['made_ns'], most)}"
    waited = step["parts"].get(_WAIT, 0.0) if step else 0.0
    if not step or waited < _NOTABLE * step["mean_ns"]:
        return
    yield from _slow_worker(found)
    causes = _causes(step["waited"], waited, step["parts"].get(TAKING, 0.0))
    time = f"Loader: waited for {duration(waited)} a step"
    if causes:
        begin = "  what was waited for" if found else time
        yield f"{begin}{_shares(': ', causes, waited)}"
        drawn = found and found["sampler_ns"]
        if drawn and drawn >= _NOTABLE * step["mean_ns"]:
            yield f"  of the training thread, the sampler takes {duration(drawn)} a batch"
        many = found and found["many_tensors"]
        if many and causes[_WAITED[_HANDOVER]] >= _HALF * waited:
            yield f"  a batch has {many} tensors, and each is handed over by itself"
    else:
        yield f"{time}; how its batches were made was not recorded"


def _slow_worker(found: Loader | None) -> Iterator[str]:
    """The one worker that is slower than all others, if there is one."""
    if found and (slow := found["slow_worker"]):
        others = "the others" if found["workers"] > 2 else "the other"
        took, rest = duration(slow["made_ns"]), duration(slow["others_ns"])
        yield f"  worker {slow['worker']} takes {took} a batch, {others} {rest}"


def _causes(known: Mapping[str, float], waited: float, taking: float) -> dict[str, float]:
    """What the loader was waited for, in parts that add up to it; empty where it is not known.

    The hand-over of batches has in it what loaders took to start and to end, and what the training
    thread takes any batch over for, which is no part of `waited`. On average it may have less in it
    than that: a batch is taken over in the other parts, too, if another one is being made.
    """
    if not known.keys() >= _WAITED.keys():
        return {}
    causes = {label: known[name] for name, label in _WAITED.items()}
    starting = min(known.get(_START, 0.0), known[_HANDOVER])
    causes[label_of(_START).strip()] = starting
    causes[_WAITED[_HANDOVER]] = max(0.0, known[_HANDOVER] - starting - taking)
    causes["not known"] = max(0.0, waited - sum(causes.values()))
    return causes


def _shares(
    begin: str, parts: Mapping[str, float | None], whole: float | None, most: int = _CAUSES
) -> str:
    """Parts with their shares, the largest first; these add up to no more than all."""
    if not whole:
        return ""
    known = {label: ns for label, ns in parts.items() if ns is not None}
    whole = max(whole, sum(known.values()))
    shares = {label: ns / whole for label, ns in known.items()}
    shown = sorted((s for s in shares.items() if s[1] >= _LEAST), key=lambda item: -item[1])
    told = ", ".join(f"{label} {percent(share)}" for label, share in shown[:most])
    return f"{begin}{told}" if told else ""


LIBAIO = "libaio was used, whose reads and writes are counted only as requests of block devices"


def _storage(summary: Summary) -> Iterator[str]:
    unnamed, mapped = summary["unnamed_bytes"], summary["mapped_data"]
    below = []
    if unnamed is not None:
        attached, named = bool(summary["attached"]), summary["data_is_named"]
        yield f"unknown; {told_of(unnamed, attached=attached, named=named)}"
    elif mapped == "most":
        yield from (_mapped(summary, "data"), *_read(summary, " by calls"))
    else:
        yield from _read(summary)
        yield from [_mapped(summary, "some data")] if mapped else []
        below += _slept(summary)
    if unnamed is None and (hinted := mean_of(summary, "cache/hint_bytes")):
        yield f"read-ahead hints brought {size(hinted)} into the page cache a step"
    if summary["has_libaio"]:
        yield LIBAIO
    if below := [*below, *_devices(summary)]:
        yield "; ".join(below)


def _read(summary: Summary, how: str = "") -> Iterator[str]:
    """What calls read of the data, and what that brought into the page cache.

    These are two amounts: read-ahead brings in more than is read, and a page that is read piece by
    piece is brought in once.
    """
    read, calls = mean_of(summary, "io/data_read_bytes"), mean_of(summary, "io/read_bytes")
    if read and (not how or read >= HEADERS):
        told = f"{size(read)} of data read{how} a step"
        yield told + _past(summary, read) + _brought(summary, read)
    elif read is None and calls:
        yield f"{size(calls)} read by calls a step, of which files is unknown"
    elif read is None and summary["level"] == "timing":
        yield "unknown (timing alone)"


def _past(summary: Summary, read: float) -> str:
    direct = mean_of(summary, "io/data_direct_read_bytes")
    if not direct:
        return ""
    return f", {'all' if direct >= read else size(direct)} of it past the page cache"


def _brought(summary: Summary, read: float) -> str:
    missed, direct = (
        mean_of(summary, name) for name in ("cache/miss_bytes", "io/data_direct_read_bytes")
    )
    if missed is None or (not missed and (direct or 0.0) >= read):
        return ""
    return f"; reads brought {size(missed) if missed else 'nothing'} into the page cache"


def _mapped(summary: Summary, what: str) -> str:
    filled = mean_of(summary, "cache/fault_fill_bytes")
    told = f"; faults or madvise brought in {size(filled) if filled else 'nothing'}"
    brought = "" if filled is None else f"{told}{' a step' if filled else ''}"
    return f"{what} is mapped{brought}; what is read of a mapping is unknown"


def _slept(summary: Summary) -> list[str]:
    stall = mean_of(summary, "cache/read_stall_ratio")
    if not stall or stall < _LEAST or not mean_of(summary, "io/data_read_bytes"):
        return []
    return [f"reads of data slept {percent(stall)} of their time"]


def _devices(summary: Summary) -> Iterator[str]:
    read, written = mean_of(summary, "block/read_bytes"), mean_of(summary, "block/write_bytes")
    parts = [f"{size(read)} read from"] if read else []
    parts += [f"{size(written)} written to"] if written else []
    if not parts:
        return
    least = "at least " if summary["lost"]["kernel"].get("requests") else ""
    yield f"{least}{' and '.join(parts)} block devices a step"
    latency = summary["latency"].get("latency/block_read")
    if latency and latency["count"] >= 100:
        number = counted(latency["count"], "read")
        yield f"p99 of {number} in the run {duration(latency['p99_ns'])}"


def _checkpoints(summary: Summary) -> Iterator[str]:
    found = summary["checkpoints"]
    if not found:
        return
    told = f"Checkpoints: {len(found)}"
    longest = max(found, key=lambda one: -1 if one["blocking_ns"] is None else one["blocking_ns"])
    if longest["blocking_ns"] is not None:
        where = "before the first step" if longest["step"] is None else f"in step {longest['step']}"
        written = longest["written_bytes"]
        wrote = "" if not written else f" and wrote {size(written)}"
        if written is None and longest["write_ns"] is not None:
            wrote = "; what it wrote is unknown, since not all of it was by calls"
        told += f"; the longest blocked for {duration(longest['blocking_ns'])} {where}{wrote}"
    yield told


def _tables(summary: Summary) -> Iterator[str]:
    found = summary["embeddings"]
    if not found:
        return
    tables = found["tables"]
    total = sum(one["row_count"] * one["row_bytes"] for one in tables)
    read = [mean_of(summary, f"embedding/bytes{{table={one['name']}}}") for one in tables]
    known = [one for one in read if one is not None]
    told = f"Embeddings: {counted(len(tables), 'table')} of {size(total)}"
    told += f", {size(sum(known))} read a step" if known else ", lookups unknown"
    if 0 < (ratio := found["time"]["forward_ratio"] or 0) <= 1:
        told += f" in {percent(ratio)} of its time"
    for one in found["skew"]["budgets"] if found["skew"] else ():
        if one["holds_rows"] and (served := one["lookup_ratio"] or 0) >= _SERVED:
            told += f"; the hottest {size(one['budget_bytes'])} serve {percent(served)}"
            break
    yield told


def _hot_rows(summary: Summary) -> Iterator[str]:
    shares = {"fae/hot_lookup_ratio": "lookups", "fae/hot_input_ratio": "inputs, in pure steps"}
    known = {what: mean_of(summary, name) for name, what in shares.items()}
    told = [f"{percent(share)} of {what}" for what, share in known.items() if share is not None]
    if told:
        held = summary["hot_rows"]["held"] if summary["hot_rows"] else []
        kept = f"; {size(held[-1]['bytes'])} on the device" if held else ""
        yield f"Hot rows: {', '.join(told)}{kept}"


def _ranks(summary: Summary) -> Iterator[str]:
    ranks = {number: one for number, one in summary["ranks"].items() if one["steps"]}
    straggler, ended = summary["straggler"], endings(summary)
    if straggler is None:
        yield from [f"Ranks: {ended}"] if ended else []
        return
    timed = {number: one["p50_ns"] for number, one in ranks.items() if one["p50_ns"] is not None}
    told = f"Ranks: {len(ranks)}"
    if timed:
        slow, fast = max(timed, key=timed.__getitem__), min(timed, key=timed.__getitem__)
        told += f"; median steps {duration(timed[fast])} (rank {fast}) to {duration(timed[slow])}"
        told += f" (rank {slow})"
    yield told
    if ended:
        yield f"  {ended}"
    because = late_because(straggler, summary["rank"])
    yield "  " + "; ".join((straggler_told(straggler), *because))


def _gpu(summary: Summary) -> Iterator[str]:
    device = summary["gpu"]
    if not device:
        return
    parts = [
        f"{label} {percent(value)}"
        for name, label in SHORT.items()
        if (value := mean_of(summary, name)) is not None
    ]
    if (power := mean_of(summary, "gpu/power_w")) is not None:
        parts.append(f"{power:.0f} W")
    held = {name: mean_of(summary, name) for name in _HELD}
    parts += [f"{label_of(name)} {percent(share)}" for name, share in held.items() if share]
    name = device.get("name", device.get("uuid", "in use"))
    yield f"GPU: {name}: {', '.join(parts) or 'what it did is unknown'}"
