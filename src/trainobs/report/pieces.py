"""Pieces of a run as the page gets them: those of `analysis.view`, with what is said in words."""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.analysis import no_steps
from trainobs.analysis.io.unnamed_reads import OF_DATA
from trainobs.analysis.view import RunView
from trainobs.report import brief_lines, io_text, losses, rank_rows, verdict_text


def piece(view: RunView, path: str) -> Mapping[str, object]:
    """A piece by its path.

    Returns:
        What the view gives. A summary also has `no_steps`, that there are none and why, `no_files`,
        why nothing is told of files, and `unseen`, what was used that is not seen; None where there
        is no need to. And `doubtful`: metrics of training data, where that is unknown; `said`: see
        `report.verdict_text.said`, with `lost`, what the numbers lack, `killed`, what the kernel
        killed for want of memory, and `endings`, which ranks were killed or failed.

    Raises:
        RunLogError: the run has no such piece, or a file of it is damaged.
    """
    if path != "summary":
        return view.piece(path)
    found = view.summary()
    killed = losses.killed(found)
    killed = killed and f"Out of memory: {killed}."
    yet = "" if found["outcome"] else " yet"
    none = f"{no_steps.found(found)}{yet}. {no_steps.reason(found)}"
    none += f" {killed}" if killed else ""
    no_files = io_text.nothing(found)
    unseen = brief_lines.LIBAIO if found["has_libaio"] else None
    why = {"no_steps": None if found["steps"] else none, "no_files": no_files, "unseen": unseen}
    doubtful = [] if found["unnamed_bytes"] is None else list(OF_DATA)
    said = verdict_text.said(found) | {"lost": losses.told(found)}
    said["killed"] = killed
    said["endings"] = rank_rows.endings(found) or None
    return {**found, **why, "doubtful": doubtful, "said": said}
