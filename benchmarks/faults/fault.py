"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from trainobs.verdict.verdict import Cause, VerdictKind


class Unavailable(Exception):
    """This machine does not let the fault be injected; says why."""


@dataclass(frozen=True)
class Fault:
    """A training with something wrong, and the verdict that is right about it.

    Attributes:
        name: of the function in `table` and on the command line.
        tells: what is wrong, for the table in docs/verdicts.md.
        kind: the right verdict.
        causes: causes that are right; none: any cause is wrong. Naming no cause is not wrong.
        job: trains for a while, observed; run in a process of its own with a directory for its
            files and one for its run log.
        around: a context that is open while the job runs; entered with the directory for files in
            the process that starts the job. Its value goes into the job's environment.
        ranks: processes of the job, started with torchrun.
        loop: "plain" or "Lightning".
        quick: whether it is in the quick suite.
    """

    name: str
    tells: str
    kind: VerdictKind
    causes: tuple[Cause, ...]
    job: Callable[[Path, Path], None]
    around: Callable[[Path], AbstractContextManager[dict[str, str]]] = lambda files: nullcontext({})
    ranks: int = 1
    loop: str = "plain"
    quick: bool = False
