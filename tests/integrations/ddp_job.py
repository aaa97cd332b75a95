"""Two ranks on one machine, which Lightning starts itself.

Usage: python ddp_job.py NAMESPACE DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.utils.data import DataLoader

from tests.integrations.models import FileData, Lightning
from trainobs import ObsCallback


def main() -> None:
    namespace, directory = sys.argv[1], Path(sys.argv[2])
    lightning = Lightning(namespace, directory)
    callback = ObsCallback()
    data = FileData(directory / "data", 16)
    trainer = lightning.trainer(
        callback, strategy="ddp", devices=2, max_epochs=2, logger=True, log_every_n_steps=1
    )
    trainer.fit(lightning.module(), DataLoader(data, batch_size=2, num_workers=1))
    print(f"rank {trainer.global_rank} wrote to {callback.run_dir}", flush=True)


if __name__ == "__main__":
    main()
