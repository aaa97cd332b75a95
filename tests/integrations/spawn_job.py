"""Two ranks in processes that Lightning spawns or forks; the script knows nothing of trainobs.

Usage: python spawn_job.py STRATEGY DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from lightning.pytorch.demos.boring_classes import BoringModel

from tests.integrations.models import Lightning


def main() -> None:
    strategy, directory = sys.argv[1], Path(sys.argv[2])
    lightning = Lightning("lightning.pytorch", directory)
    trainer = lightning.trainer(strategy=strategy, devices=2, limit_train_batches=4)
    trainer.fit(BoringModel())


if __name__ == "__main__":
    main()
