"""Judges verdicts: whether each says what is wrong, and whether its advice helps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from faults.case import HEALTHY, Case, Right, because
from faults.follow import CannotFollow, followed, name_of
from faults.machine import CPUS
from faults.runner import Kept, kept
from faults.setting import Setting
from trainobs.analysis.summary import summarize
from trainobs.replay.changes import KNOWN
from trainobs.runlog.reader import RunLog
from trainobs.verdict.verdict import Cause, VerdictKind

FAULT, REMEDY = "fault", "remedy"
"""Directories of a case, of its run as it is and of that with its remedy."""

WHY_NOT = "why-not"
"""File of a case that could not be run; says why."""

REAL = 1.2
"""Gain of a remedy from which on a fault is real."""

OUTSIDE = {"cpus"}
"""Changes that a replay knows, of something outside the training."""

LOSES = 1 / 1.05
"""Gain of advice below which it does harm."""

BUSY = 0.15
"""Share of the CPUs taken by others above which a run was disturbed, if it lacked CPUs."""

LACKED = 0.1
"""Time in the run queue, as a share of the step, from which on a run lacked CPUs."""

LESS: Mapping[Right, tuple[Right, ...]] = {
    ("LOADER", "WORKERS"): because("LOADER", "TRANSFORM", "HANDOVER"),
    ("LOADER", "FETCH_SLEEP"): because("LOADER", "STORAGE", "LOADER_SLEEP", "NETWORK", "HELPERS"),
    ("SLEEP", "UNKNOWN"): because("MEMORY", "RECLAIM", "FAULTS") + because("MEMORY"),
    **{
        (kind, "CPU"): because(kind, "OTHERS", "QUOTA", "FULL", "OWN_THREADS")
        for kind in ("COMPUTE", "LOADER")
    },
}
"""What is told where no probe tells which of some it is: vague, and not wrong."""

Found = dict[str, Any]


def judged(case: Case, folder: Path) -> Found:
    """What came of a case.

    Args:
        case: the case.
        folder: has what its runs left.
    """
    fault, remedy = kept(folder / FAULT), kept(folder / REMEDY)
    if fault is None or (folder / WHY_NOT).exists():
        return {"result": "not run", "reason": _why_not(folder)}
    summary = summarize(RunLog.open(fault.run_dir))
    verdict = summary["verdict"]["run"]
    gain = fault.step_ms / remedy.step_ms if remedy else None
    advice = _advice(case, verdict, folder)
    result, reason = result_of(case, verdict, gain, advice)
    after = kept(_place(folder, advice["change"])) if advice else None
    if result not in ("right", "vague") and is_disturbed(summary, fault, remedy, after):
        result = "disturbed"
    return {
        "result": result,
        "reason": reason,
        "right": case.right,
        "level": summary["level"],
        "step_ms": fault.step_ms,
        "others_cpus": fault.others_cpus,
        "setting": fault.setting,
        "remedy": {"change": dict(case.remedy), "gain": gain},
        "followed": advice,
        "verdict": verdict,
    }


def result_of(
    case: Case, verdict: Mapping[str, Any], gain: float | None, advice: Mapping[str, Any]
) -> tuple[str, str]:
    """A result and its reason.

    Args:
        case: the case.
        verdict: on it, as JSON.
        gain: of the remedy; None: there is none.
        advice: what came of following it, as `_advice` gives it.
    """
    said = said_by(verdict)
    if gain is not None and gain < REAL:
        return "not injected", f"the remedy makes it {gain:.2f} times as fast"
    if advice.get("gain", 1.0) < LOSES:
        return "wrong", f"who follows the advice gets {advice['gain']:.2f} times the speed"
    if case.healthy and verdict.get("advice"):
        return "wrong", "advice where nothing is wrong"
    if said in case.right:
        return "right", ""
    less = LESS.get(said, ()) if case.setting.machine.unprivileged else ()
    if any(one in case.right for one in less):
        return "vague", "one of several causes"
    if said[1] is None and any(said[0] == kind for kind, _ in case.right) and said != HEALTHY:
        return "vague", "no cause"
    if said[0] is None:
        return "abstained", str(verdict.get("abstained_because"))
    return "wrong", f"it says {_shown(said)}, and it is {' or '.join(map(_shown, case.right))}"


def said_by(verdict: Mapping[str, Any]) -> Right:
    """Names of kind and cause of a verdict."""
    kind, cause = verdict["kind"], verdict["cause"]
    return kind and VerdictKind(kind).name, cause and Cause(cause).name


def is_disturbed(summary: Mapping[str, Any], *runs: Kept | None) -> bool:
    """Others had the CPUs in one of these runs, and the first one lacked them."""
    metrics = summary["metrics"]
    waited = [metrics[f"sched/{who}_runqueue_ns"]["mean"] or 0.0 for who in ("main", "worker")]
    lacked = sum(waited) >= LACKED * (metrics["step/duration_ns"]["mean"] or 0.0)
    return lacked and any(run.others_cpus > BUSY * CPUS for run in runs if run)


def advised(case: Case, folder: Path) -> tuple[Setting, Path] | None:
    """The setting after what a verdict advises, and where its run is kept; None: nothing is."""
    fault = kept(folder / FAULT)
    if fault is None:
        return None
    advice = summarize(RunLog.open(fault.run_dir))["verdict"]["run"]["advice"]
    if advice is None or _is_remedy(advice["change"]):
        return None
    change = advice["change"]
    try:
        return followed(case.setting, change), _place(folder, change)
    except CannotFollow:
        return None


def _advice(case: Case, verdict: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What came of following the advice; empty if there is none that a machine can read.

    Returns:
        change and predicted as the verdict has them; gain, as measured, if somebody followed it;
        refused, with the reason, if nobody can.
    """
    if verdict["advice"] is None:
        return {}
    change = verdict["advice"]["change"]
    found: dict[str, Any] = {"change": change, "predicted": verdict["advice"]["gain"]}
    if _is_remedy(change):
        gain = measured_gain(folder / FAULT, folder / REMEDY)
        return found | ({"gain": gain} if gain else {})
    try:
        followed(case.setting, change)
    except CannotFollow as why:
        return found | {"refused": str(why)}
    gain = measured_gain(folder / FAULT, _place(folder, change))
    return found | ({"gain": gain} if gain else {})


def measured_gain(before: Path, after: Path) -> float | None:
    """How many times as fast a run was after a change; None: it has not been run.

    Where both were run again, by all of their time.
    """
    firsts, seconds = (
        [found.step_ms for place in (run, again(run)) if (found := kept(place))]
        for run in (before, after)
    )
    return fmean(firsts) / fmean(seconds) if firsts and seconds else None


def again(place: Path) -> Path:
    """Where a second run of the same is kept."""
    return place.with_name(f"{place.name}-again")


def _is_remedy(change: Mapping[str, Any]) -> bool:
    """Whether the remedy of a case makes a change: outside the training, or in its own code."""
    return bool(change.keys() & OUTSIDE or change.keys() - KNOWN.keys())


def _place(folder: Path, change: Mapping[str, Any]) -> Path:
    return folder / name_of(change)


def _why_not(folder: Path) -> str:
    why = folder / WHY_NOT
    return why.read_text() if why.exists() else "it is not kept"


def _shown(right: Right) -> str:
    kind, cause = right
    return f"{kind or 'none'}{f' ({cause})' if cause else ''}"
