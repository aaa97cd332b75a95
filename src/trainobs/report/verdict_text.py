"""What a verdict means and what is not known of it, in sentences: the text's and the page's."""

from __future__ import annotations

from trainobs.analysis.summary import Summary

MEANINGS = {
    "loader-bound": "Training waits for its data.",
    "copy-bound": "Moving batches to the device takes the time.",
    "compute-bound": "The computation itself takes the time.",
    "communication-bound": "Training waits for other ranks.",
    "checkpoint-bound": "Saving checkpoints takes the time.",
    "validation-bound": "Validation takes the time.",
    "memory-bound": "This run is short of memory.",
    "no CPU free": "The training thread is ready to run, and has no CPU.",
    "waiting for a device": "The training thread sleeps for a device.",
    "computing": "The training thread computes.",
    "asleep": "The training thread sleeps in the step.",
    "mixed": "Several costs count, and none of them stands out.",
}
"""Kind of a verdict -> what it means."""

HELD_UP = "Computation is held up."

NOTHING_SURE = (
    "no change of the loader, its storage, checkpoints or validation is sure to bring 5 % by a "
    "replay, which can try no others"
)
NO_REPLAY = "too little is known of how the batches were made to replay this run"

ASK_FOR_WORKERS = ("loader-bound", "mixed")
"""Kinds of verdicts of which somebody asks what more workers would do."""


def said(summary: Summary) -> dict[str, str | None]:
    """What the page says of the verdict on a run: sentences, or None.

    Returns:
        `meaning`: of the verdict; `unknown`: why nobody knows what, or what else, would help;
        `workers`: why nobody knows what another number of workers would do.
    """
    verdict = summary["verdict"]["run"]
    is_held_up = verdict["kind"] == "compute-bound" and verdict["cause"]
    why = unpredicted_workers(summary)
    return {
        "meaning": HELD_UP if is_held_up else MEANINGS.get(verdict["kind"] or ""),
        "unknown": _unknown(summary),
        "workers": f"{why}." if why else None,
    }


def _unknown(summary: Summary) -> str | None:
    found, verdict = summary["would_help"], summary["verdict"]["run"]
    if found["changes"] or not verdict["kind"]:
        return None
    if found["refused"]:
        what = "What else would help" if verdict["advice"] else "What would help"
        return f"{what} is not known: {found['refused']}."
    if verdict["advice"]:
        return None
    return f"What would help is not known: {NOTHING_SURE if found['replayed'] else NO_REPLAY}."


def unpredicted_workers(summary: Summary) -> str:
    """Why nobody knows what more workers would do, where that is the question; or ""."""
    why = summary["would_help"]["unknown"].get("workers")
    is_asked = summary["verdict"]["run"]["kind"] in ASK_FOR_WORKERS
    return f"num_workers is not predicted: {why}" if why and is_asked else ""
