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
    yield from _straggler(straggler, summary["rank"])


def endings(summary: Summary) -> str:
    """The ranks that ended otherwise than the one that is told of, and those that were killed.

    Of a run that has ended; the last steps of a killed rank may be missing.
    """
    ranks = summary["ranks"]
    if not any(one["has_ended"] for one in ranks.values()):
        return ""
    told = {"ok", summary["outcome"]}
    failed: dict[str, list[int]] = {}
    for rank, one in ranks.items():
        if one["outcome"] and one["outcome"] not in told:
            failed.setdefault(one["outcome"], []).append(rank)
    left = [rank for rank, one in ranks.items() if not one["has_ended"]]
    killed = [f"not ended, or killed: {_named(left)}"] if left else []
    return "; ".join([f"{_named(these)} ended: {how}" for how, these in failed.items()] + killed)


def _named(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    which = "rank" if len(ranks) == 1 else "ranks"
    return f"{which} {', '.join(map(str, ranks[:_NAMED]))}{more}"


def straggler_told(found: Straggler) -> str:
    """The rank that the others wait for, in a sentence."""
    if not found["known"]:
        return f"who waits for whom: not known ({found['why']})"
    if found["rank"] is None and found["by"] == "waiting":
        return (
            "no straggler: none waits less than every other by a tenth of the step, in the mean "
            "and in half of them"
        )
    if "mostly" in found:
        most, rest = duration(found["mostly_ns"]), duration(found["rest_ns"])
        return (
            f"no straggler: the others wait for rank {found['mostly']} for {most} a step, but for "
            f"the rest for {rest} as well"
        )
    if found["rank"] is None:
        return (
            "no straggler: none makes the others wait for a tenth of the step in two thirds of "
            "the steps"
        )
    late = f"{duration(found['held_up_ns'])} a step, {percent(min(1.0, found['share']))} of it"
    return f"STRAGGLER: rank {found['rank']} makes the others wait for {late}"


def late_because(found: Straggler, shown: int) -> Iterator[str]:
    """What is found of the straggler, unless all else is about it anyway: the rank `shown`.

    And the rank that the others wait for in some steps only.
    """
    if found["rank"] not in (None, shown):
        if found["because"]:
            yield f"that rank: {found['because']}"
        yield f"see `report --rank {found['rank']}`"
    if "at_times" in found:
        waited = f"{duration(found['at_times_ns'])} a step in the mean"
        other = (
            "" if found["at_times"] == found["rank"] else f"they wait for rank {found['at_times']}"
        )
        yield f"in some steps {other or 'for longer'}: {waited}"


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
