"""What a run did with files and peers, as `trainobs report --io` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trainobs.analysis.io.files import FilesRead, InMemory, Moved
from trainobs.analysis.io.peers import PeerBytes
from trainobs.analysis.ranks.collectives import Collectives
from trainobs.analysis.summary import Summary
from trainobs.core.errors import TrainobsError
from trainobs.core.file_rows import TOP
from trainobs.core.peer_rows import NOT_CONNECTED
from trainobs.core.text import bar, counted, duration, percent, printable, quantity, size
from trainobs.report.rows import cut_path, or_unknown, paragraph, row

_LABEL = 22
_BAR = 40
_FILE = 34
_SHOWN = 10
_AHEAD = "read ahead"
_READ = (
    "read: by calls, so not what mapped files serve; reads of a validation are in it where loader "
    "workers make them, or of files that are known to be data"
)
_PHASES = ("forward", "backward", "optimizer")
_INODES = "; #: the inode of a file whose name others have, too"
_NOT_NAMED = "give `data_roots`: the record has names of files, and no paths"
_NO_DATA = "no file was seen to be data; where some are, give `data_roots`"
_NAMED = "no file in `data_roots` could be asked about: it takes local files, and Linux 6.5"


def render(summary: Summary) -> str:
    """A page of plain text.

    Args:
        summary: what `analysis.summary.summarize` returns.

    Raises:
        TrainobsError: see `counted_in`.
    """
    found, none = counted_in(summary), nothing(summary)
    parts: Sequence[Iterator[str]]
    if found["state"] != "on":
        parts = (iter(paragraph(f"Files were not counted: {found['state']}")),)
    else:
        parts = (
            _head(summary, found),
            *(map(iter, [paragraph(none)]) if none else (part(found) for part in _OF_FILES)),
            _calls(found) if found["epochs"] else iter(()),
            _peers(found["peers"] or (), found["rank"]),
            _collectives(found["collectives"]),
        )
    texts = ("\n".join(map(printable, part)) for part in parts)
    return "\n\n".join(text for text in texts if text)


def counted_in(summary: Summary) -> FilesRead:
    """What `--io --json` prints.

    Raises:
        TrainobsError: files were not to be counted.
    """
    found = summary["io"]
    if found is None:
        raise TrainobsError(
            failed="This run did not count what it read of each file.",
            found=f"no counts of files in {summary['run']}",
            do="observe it with io=True, and probes: observe(io=True), ObsCallback(io=True)",
        )
    return found


def _head(summary: Summary, found: FilesRead) -> Iterator[str]:
    epochs = counted(sum(not one["is_ahead"] for one in found["epochs"]), "epoch")
    yield f"Files of {summary['run']}: rank {found['rank']}, {epochs}"
    for text in found["unknown"]:
        yield from paragraph(f"not in these numbers: {text}", "  ", "    ")


def _name(one: Moved) -> str:
    return f"{one['class']} {'read' if one['op'] == 'read' else 'written'}"


def times(one: Moved) -> str:
    """How often a byte was moved in an epoch."""
    low, high = one["times_least"], one["times_most"]
    if low is None:
        return "-"
    if high is None:
        return f">= {low:.2f}"
    texts = dict.fromkeys((f"{low:.2f}", f"{high:.2f}"))
    return "-".join(texts)


def nothing(summary: Summary) -> str | None:
    """That nothing is told of files, and why; None where something is, or files do not count."""
    found = summary["io"]
    if found is None or found["state"] != "on" or found["classes"]:
        return None
    if found["epochs"]:
        return "No file was read or written, as far as files were counted."
    if summary["outcome"] is None:
        return (
            "Nothing yet: what is read and written of files is stored as an epoch ends, and none "
            "has ended in this run log."
        )
    return "Nothing of files is in this run log."


def _classes(found: FilesRead) -> Iterator[str]:
    heads = ("calls", "bytes", "each byte", "consecut.", "forward", "backward", "aligned")
    yield row("By kind of file", *heads, width=_LABEL)
    for one in found["classes"]:
        if not one["count"] and (one["class"] != "data" or _is_doubted(found)):
            continue
        shares = (one["consecutive"], one["forward"], one["backward"], one["aligned"])
        yield row(
            f"  {_name(one)}",
            quantity(one["count"]),
            size(one["bytes"]),
            times(one),
            *(or_unknown(percent, share) for share in shares),
            width=_LABEL,
        )
    yield from paragraph(
        "each byte: how often calls moved it in an epoch; consecut., forward, backward: calls that "
        "began where the one before on the same open file had ended, behind that, before that "
        "(of the rest there was none before; of those whose place is known); aligned: at a page",
        "  ",
        "  ",
    )


def _is_doubted(found: FilesRead) -> bool:
    """Whether more may have been read of training data than is known."""
    return found["unnamed_bytes"] is not None or found["reads_unseen"]


def _spreads(found: FilesRead) -> Iterator[str]:
    for one in found["classes"]:
        if one["class"] == "data" and one["call_bytes"]:
            yield f"Sizes of calls, {_name(one)}"
            most = max(bucket["count"] for bucket in one["call_bytes"])
            for bucket in one["call_bytes"]:
                label = f"  {_binary(bucket['from'])} - {_binary(2 * bucket['from'])}"
                line = bar(bucket["count"] / most, _BAR)
                yield f"{row(label, quantity(bucket['count']), width=_LABEL)}  {line}"


def _binary(count: int) -> str:
    """A power of two of bytes, as request sizes are named."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >> shift:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def _epochs(found: FilesRead) -> Iterator[str]:
    heads = ("time", "read", "a second", "in calls", "each byte", "opens", "in memory")
    yield row("Data read by epoch", *heads, width=_LABEL)
    for epoch in found["epochs"]:
        data = [one for one in epoch["classes"] if (one["op"], one["class"]) == ("read", "data")]
        name = _AHEAD if epoch["is_ahead"] else f"epoch {epoch['epoch']}"
        one, seconds = data[0] if data else None, epoch["seconds"]
        if _is_doubted(found):
            least = f">= {size(one['bytes'])}" if one and one["bytes"] else "unknown"
            taken = or_unknown(lambda s: duration(1e9 * s), seconds)
            yield row(f"  {name}", taken, least, width=_LABEL)
            continue
        yield row(
            f"  {name}",
            or_unknown(lambda s: duration(1e9 * s), seconds),
            size(one["bytes"]) if one else "0 B",
            size(one["bytes"] / seconds) if one and seconds else "-",
            f"{size(1e9 * one['bytes'] / one['ns'])}/s" if one and one["ns"] else "-",
            times(one) if one else "-",
            quantity(one["open_count"]) if one else "0",
            _in_memory(epoch["cache"]),
            width=_LABEL,
        )
    if any(epoch["is_ahead"] for epoch in found["epochs"]):
        told = "after the epochs that have steps, by workers ahead of the loop or for a validation"
        yield from paragraph(f"{_AHEAD}: {told}", "  ", "  ")
    yield from paragraph(_READ, "  ", "  ")
    yield from paragraph(_about_cache(found), "  ", "  ")


def _in_memory(cache: InMemory | None) -> str:
    return percent(cache["cached_bytes"] / cache["sampled_bytes"]) if cache else "-"


def _about_cache(found: FilesRead) -> str:
    looks = [cache for epoch in found["epochs"] if (cache := epoch["cache"])]
    if not looks:
        return f"in memory: unknown; {_why_not_asked(found)}"
    return f"in memory: what the page cache held at the end, of {_asked_of(looks[-1])}"


def _why_not_asked(found: FilesRead) -> str:
    if found["data_is_named"]:
        return _NAMED
    rows = (one for epoch in found["epochs"] for one in epoch["classes"])
    is_seen = found["data_is_mapped"] or any(one["class"] == "data" for one in rows)
    return _NOT_NAMED if is_seen else _NO_DATA


def _asked_of(cache: InMemory) -> str:
    asked, files = cache["sampled_count"], f"{counted(cache['file_count'], 'file')} of the data set"
    if asked < cache["file_count"]:
        files = f"{asked:,} of the {files}"
    elif cache["is_all"] and asked > 1:
        files = f"all {files}"
    return files if cache["is_all"] else f"{files} that were found; it may have more"


def _files(found: FilesRead) -> Iterator[str]:
    files = [one for one in found["files"] if one["class"] != "library"][:_SHOWN]
    if not files:
        return
    which = Counter((one["op"], one["file"]) for one in files)
    same = _INODES if max(which.values()) > 1 else ""
    heads = ("bytes", "calls", "opens", "each byte", "consecut.", "epochs")
    yield row("Largest files", *heads, width=_FILE)
    for one in files:
        inode = f" #{one['inode']}" if which[one["op"], one["file"]] > 1 else ""
        name, room = one["file"], max(_FILE - 12 - len(inode), 4)
        name = name if len(name) <= room else f"...{name[3 - room :]}"
        yield row(
            f"  {name}{inode} {'read' if one['op'] == 'read' else 'written'}",
            size(one["bytes"]),
            quantity(one["count"]),
            quantity(one["open_count"]),
            times(one),
            or_unknown(percent, one["consecutive"]),
            quantity(one["epochs"]),
            width=_FILE,
        )
    yield from paragraph(
        f"epochs: those in which a file was among the {TOP} of its kind of which most was moved; "
        f"what was moved of it in others is not in its row{same}",
        "  ",
        "  ",
    )


_OF_FILES = (_classes, _spreads, _epochs, _files)


def _calls(found: FilesRead) -> Iterator[str]:
    yield row("Calls about files", "calls", "failed", "time", width=_LABEL)
    for op, label in (("stat", "stat and its like"), ("list", "listing directories")):
        sums = [epoch["calls"][op] for epoch in found["epochs"]]
        yield row(
            f"  {label}",
            quantity(sum(one["count"] for one in sums)),
            quantity(sum(one["failed_count"] for one in sums)),
            duration(sum(one["ns"] for one in sums)),
            width=_LABEL,
        )


def peer_name(one: PeerBytes, own: int) -> str:
    """Who a peer of the rank `own` is: a rank, an address, or all that were not told apart."""
    if one["rank"] is not None:
        return "itself, and its children" if one["rank"] == own else f"rank {one['rank']}"
    if one["peer"] is None:
        return "others"
    if one["peer"] == NOT_CONNECTED:
        return "not connected"
    address = f"[{one['peer']}]" if one["port"] and ":" in one["peer"] else one["peer"]
    return f"{address}:{one['port']}" if one["port"] else address


def _peers(found: Sequence[PeerBytes], own: int) -> Iterator[str]:
    if not found:
        return
    yield row("Peers", "sent", "received", *_PHASES, "apart", width=_FILE)
    shown = [*found[:_SHOWN], *(one for one in found[_SHOWN:] if one["peer"] is None)]
    for one in shown:
        moved = one["apart_bytes"] + sum(one["phases"].values())
        parts = [*(one["phases"].get(phase, 0) for phase in _PHASES), one["apart_bytes"]]
        yield row(
            f"  {cut_path(peer_name(one, own), _FILE - 2)}",
            or_unknown(size, one["sent_bytes"]),
            or_unknown(size, one["received_bytes"]),
            *(percent(part / moved) if moved else "-" for part in parts),
            width=_FILE,
        )
    if len(found) > len(shown):
        yield f"  and {counted(len(found) - len(shown), 'more peer')}: see --json"
    yield from paragraph(
        "forward and so on: shares of the bytes, by what the training thread did meanwhile; apart: "
        "of workers and other children; the rest: in other phases",
        "  ",
        "  ",
    )


def _collectives(found: Collectives | None) -> Iterator[str]:
    if found is None:
        return
    steps = found["steps"]
    yield row("Collectives in a step", "calls", "given", "got", width=_LABEL)
    for one in found["kinds"]:
        moved = (_each(one["input_bytes"], steps), _each(one["output_bytes"], steps))
        yield row(f"  {one['kind']}", f"{one['count'] / steps:.2f}", *moved, width=_LABEL)
    sent, received = _each(found["sent_bytes"], steps), _each(found["received_bytes"], steps)
    yield from paragraph(
        "given, got: bytes of the tensors of this rank, as torch has noted them; on sockets it "
        f"sent {sent} and received {received} in a step (means of {steps:,} of "
        f"{found['of_steps']:,} steps, in which all collectives are known)",
        "  ",
        "  ",
    )


def _each(amount: int | None, steps: int) -> str:
    return "-" if amount is None else size(amount / steps)
