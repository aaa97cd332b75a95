"""The ordinary case: the ImageNet example under Lightning, with and without `ObsCallback`."""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from rounds import fit_round
from ruler import Cost, compare

from trainobs import ObsCallback

EXAMPLE = Path(__file__).parent.parent / "examples" / "imagenet"


def measure(*, quick: bool) -> dict[str, Any]:
    """Compare short fits of the example's model on the example's data."""
    sys.path.insert(0, str(EXAMPLE))
    from data import build_loaders, find_data
    from options import Options
    from train import Classifier

    options = Options(run_dir=Path("unused"))
    root = find_data(options)
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        runs = (Path(folder, str(number)) for number in count())

        def one_round(observed: bool) -> Cost:
            train, _, classes = build_loaders(root, options)
            callbacks = [ObsCallback(run_dir=next(runs), quiet=True)] if observed else []
            module = Classifier(options.depth, classes, options.lr)
            return fit_round(module, train, callbacks, window_s=1.0 if quick else 8.0)

        arms = {"bare": lambda: one_round(False), "observed": lambda: one_round(True)}
        return compare(arms, 2 if quick else 6)
