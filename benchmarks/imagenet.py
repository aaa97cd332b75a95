"""The ordinary case: the ImageNet example under Lightning, with and without `ObsCallback`."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
from pairs import compare

from trainobs import ObsCallback

EXAMPLE = Path(__file__).parent.parent / "examples" / "imagenet"
WARM_UP = 5


class StepTimes(L.Callback):
    """Time from the end of a batch to the end of the next, in ns."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.ends.append(time.perf_counter_ns())

    def steps(self) -> list[int]:
        ends = self.ends[WARM_UP:]
        return [after - before for before, after in zip(ends, ends[1:], strict=False)]


def measure(*, quick: bool) -> dict[str, Any]:
    """Compare short fits of the example's model on the example's data."""
    sys.path.insert(0, str(EXAMPLE))
    from data import build_loaders, find_data
    from options import Options
    from train import Classifier

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    options = Options(run_dir=Path("unused"))
    root = find_data(options)
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:

        def one_round(observed: bool) -> list[int]:
            train, _, classes = build_loaders(root, options)
            times = StepTimes()
            trainer = L.Trainer(
                accelerator="cpu",
                max_epochs=1,
                limit_train_batches=WARM_UP + (8 if quick else 25),
                callbacks=[times, *([ObsCallback()] if observed else [])],
                default_root_dir=folder,
                enable_progress_bar=False,
                enable_model_summary=False,
                enable_checkpointing=False,
            )
            trainer.fit(Classifier(options.depth, classes, options.lr), train)
            return times.steps()

        return compare(one_round, pairs=2 if quick else 10)
