"""One of several ranks that train with a Hugging Face Trainer.

Usage: python -m torch.distributed.run --nproc-per-node 2 hf_ddp_job.py DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.integrations.trainers import HuggingFace, TokenFiles
from trainobs import ObsTrainerCallback


def main() -> None:
    hf = HuggingFace(Path(sys.argv[1]))
    callback = ObsTrainerCallback()
    # Each rank makes the files that it may read, before the barrier of the Trainer's set-up.
    data = TokenFiles(hf.directory / f"data-{os.environ['RANK']}", 16)
    trainer = hf.train(
        callback,
        data=data,
        num_train_epochs=2,
        dataloader_num_workers=1,
        logging_strategy="steps",
        logging_steps=1,
        report_to="tensorboard",
        ddp_backend="gloo",
    )
    print(f"rank {trainer.args.process_index} wrote to {callback.run_dir}", flush=True)
    trainer.end()


if __name__ == "__main__":
    main()
