"""Why a run has no steps, as far as its log tells."""

from __future__ import annotations

from pathlib import Path

from trainobs.analysis.summary import Summary
from trainobs.core.text import counted, duration

_OWN_LOOP = (
    "a step is what ends as an optimizer of torch's steps, without one a fetch of "
    "`obs.loader(...)`, or what `with obs.step():` holds"
)


def found(summary: Summary) -> str:
    """That there is none, in words: files that are gone, or cannot be read, may have had some."""
    if _unread(summary) or not summary["ranks"]:
        return "No step can be read"
    return "No step was recorded"


def _unread(summary: Summary) -> int:
    files = summary["lost"]["files"].keys() - set(summary["lost"]["partly"])
    return sum(Path(file).name.startswith("steps-") for file in files)


def reason(summary: Summary, where: str = "below") -> str:
    """Why there is no step to tell of, in a sentence or two.

    Args:
        summary: what `analysis.summary.summarize` returns.
        where: its reader finds what it says of losses.
    """
    outcome, setup = summary["outcome"], summary["setup"]
    if not summary["ranks"]:
        return "There is no directory rank=0 in it, which holds the steps: copy it, too."
    if damaged := _unread(summary):
        return f"{counted(damaged, 'file')} of steps cannot be read; the reason is {where}."
    if summary["lost"]["steps"].get("runlog"):
        return f"Steps were trained and could not be stored; the reason is {where}."
    if outcome is None:
        return (
            "The run is still in its first step, was killed in it or before its first steps were "
            "stored, which happens every few seconds, or the log could not be written."
        )
    if (summary["attached"] or {}).get("periods"):
        return (
            "No function of torch was found in the process, so that nobody knows its steps: only a "
            "rate and a period of its system calls are told."
        )
    if summary["attached"]:
        return "No step began and ended while trainobs was attached to the process."
    if outcome.startswith("given up"):
        return f"Observing ended by a fault of trainobs before a step was complete ({outcome})."
    if outcome != "ok":
        return f"The training ended before a step was complete: {outcome}."
    if validated := setup.get("phase/validation_ns"):
        return (
            f"Validation ran for {duration(validated)}, and no training: of Lightning, only `fit` "
            f"has steps; in a loop of your own {_OWN_LOOP}."
        )
    if noted := summary["no_step"]:
        return f"{noted[0].upper()}{noted[1:]}: put each step into `with obs.step():`."
    if setup.get("loader/wait_ns"):
        return (
            f"Batches were fetched, and no step was found: in a loop of your own {_OWN_LOOP}. "
            "Under Lightning the run ended before its second batch was fetched."
        )
    return (
        f"No fetch of a batch was seen, and no step was found: in a loop of your own {_OWN_LOOP}; "
        "under Lightning and Hugging Face only training has steps."
    )
