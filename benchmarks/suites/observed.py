"""A pytest plugin: has the tests of somebody else's suite run observed, and notes their outcomes.

Two environment variables, which `run.py` sets: SUITE_OUTCOMES, the file for the outcomes, and
SUITE_OBSERVE: "loaders" puts each DataLoader (and what Accelerate prepares) into `obs.loader` of
one run that lasts as long as the tests, "huggingface" an `ObsTrainerCallback` on each Trainer.
Lightning's Trainers are observed by TRAINOBS_AUTO alone.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OUTCOMES = os.environ.get("SUITE_OUTCOMES", "")
WHAT = os.environ.get("SUITE_OBSERVE", "")

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test fails if any of its parts does."""
    if report.when == "call" or report.outcome != "passed":
        before = _outcomes.get(report.nodeid, report.outcome)
        _outcomes[report.nodeid] = "failed" if "failed" in (before, report.outcome) else before


def pytest_sessionstart() -> None:
    """Begin to observe, where that is asked for."""
    place = tempfile.mkdtemp(prefix="trainobs-suite-")
    if WHAT == "loaders":
        _observe_loaders(place)
    elif WHAT == "huggingface":
        _observe_trainers(place)


def pytest_sessionfinish() -> None:
    """Write what became of each test."""
    if OUTCOMES:
        Path(OUTCOMES).write_text(json.dumps(_outcomes))


def _observe_loaders(place: str) -> None:
    from torch.utils.data import DataLoader

    import trainobs

    obs = trainobs.observe(run_dir=f"{place}/run", quiet=True)

    def also_observed(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            assert obs.loader(self) is self

        return made

    kinds: list[Any] = [DataLoader]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        pass
    else:
        kinds.append(StatefulDataLoader)
    for kind in kinds:
        kind.__init__ = also_observed(kind.__init__)
    try:
        from accelerate import Accelerator
    except ImportError:
        return
    prepare: Callable[..., Any] = Accelerator.prepare_data_loader
    Accelerator.prepare_data_loader = functools.wraps(prepare)(
        lambda *args, **kwargs: obs.loader(prepare(*args, **kwargs))
    )


def _observe_trainers(place: str) -> None:
    from transformers import Trainer

    from trainobs import ObsTrainerCallback

    init: Any = Trainer.__init__

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.add_callback(ObsTrainerCallback(run_dir=f"{place}/run", quiet=True))

    Trainer.__init__ = made
