"""The report's section on the ranks of a job, and on the one that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.analysis.ranks.side_by_side import Straggler, waited_ns
from trainobs.analysis.summary import Summary
from trainobs.core.text import counted, duration, percent
from trainobs.report.rows import or_unknown, paragraph, row

_RANK = 22
_NAMED = 8
_RANKS = 16
"""Ranks on the page: the one that others wait for, then the slowest."""


def section(summary: Summary) -> Iterator[str]:
    """The ranks side by side, if there is more than one; the rest is about one of them."""
    ranks = {rank: one for rank, one in summary["ranks"].items() if one["steps"]}
    straggler = summary["straggler"]
    if straggler is None:
        return
    titles = ("steps", "median", "p95", "backward", "waited", "awaited")
    yield row("Ranks", *titles, width=_RANK)
    first = straggler["rank"]
    ordered = sorted(ranks, key=lambda n: (n != first, -(ranks[n]["p50_ns"] or 0), n))
    for rank, one in ((number, ranks[number]) for number in ordered[:_RANKS]):
        times = (one["p50_ns"], one["p95_ns"], one["backward_ns"], waited_ns(one))
        columns = (or_unknown(duration, ns) for ns in times)
        awaited = or_unknown(percent, one["most_ratio"])
        yield row(f"  rank {rank}", str(one["steps"]), *columns, awaited, width=_RANK)
    if len(ranks) > _RANKS:
        yield f"  and {counted(len(ranks) - _RANKS, 'more rank')}"
    if without_end := unended(summary):
        yield f"  {without_end}"
    yield from _straggler(straggler, summary["rank"])


def unended(summary: Summary) -> str:
    """The ranks that were killed, of a run that has ended; their last steps may be missing."""
    ended = {rank: one["has_ended"] for rank, one in summary["ranks"].items()}
    if not any(ended.values()) or all(ended.values()):
        return ""
    left = [str(rank) for rank, has_ended in ended.items() if not has_ended]
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    which = "rank" if len(left) == 1 else "ranks"
    return f"not ended, or killed: {which} {', '.join(left[:_NAMED])}{more}"


def straggler_told(found: Straggler) -> str:
    """The rank that the others wait for, in a sentence."""
    if not found["known"]:
        return f"who waits for whom: not known ({found['why']})"
    if found["rank"] is None and found["by"] == "waiting":
        return (
            "no straggler: none waits less than every other by a tenth of the step, in the mean "
            "and in half of them"
        )
    if found["rank"] is None:
        return (
            "no straggler: none makes the others wait for a tenth of the step in two thirds of "
            "the steps"
        )
    late = f"{duration(found['held_up_ns'])} a step, {percent(min(1.0, found['share']))} of it"
    return f"STRAGGLER: rank {found['rank']} makes the others wait for {late}"


def late_because(found: Straggler, shown: int) -> Iterator[str]:
    """What is found of the straggler, unless all else is about it anyway: the rank `shown`."""
    if found["rank"] not in (None, shown):
        if found["because"]:
            yield f"that rank: {found['because']}"
        yield f"see `report --rank {found['rank']}`"


def _straggler(found: Straggler, shown: int) -> Iterator[str]:
    """The same, with how it is known."""
    yield f"  {straggler_told(found)}"
    if found["known"] and found["rank"] is not None:
        if found["by"] == "arrival":
            share = percent(found["most_ratio"])
            yield f"    by arrival at the collectives; longest awaited in {share} of the steps"
        else:
            yield "    it waits that much less in collectives than every other rank"
    yield from paragraph("; ".join(late_because(found, shown)), "    ", "      ")
