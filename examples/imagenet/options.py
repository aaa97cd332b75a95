"""The command line that train.py and train_plain.py share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
EPOCH, NEVER = "epoch", "never"  # when a checkpoint is saved, if not every so many steps


@dataclass(frozen=True)
class Options:
    """What a training run may be told; the defaults are a demo of about a minute on two cores."""

    run_dir: Path
    data: Path | None = None
    cache: Path = HERE / ".data"
    epochs: int = 2
    batch_size: int = 32
    workers: int = 2
    lr: float = 0.02
    image_size: int = 96
    depth: int = 18
    limit_batches: int | None = None
    checkpoints: str = EPOCH
    no_obs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no training can use."""
        smallest = {
            "epochs": 1,
            "batch_size": 2,
            "workers": 0,
            "image_size": 32,
            "limit_batches": 1,
        }
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is not None and value < least:
                flag = "--" + name.replace("_", "-")
                stop("cannot train", f"{flag} {value}", f"give {flag} {least} or more")
        check_checkpoints(self.checkpoints)

    @property
    def checkpoint_steps(self) -> int | None:
        """Steps from one checkpoint to the next; None where they are not saved by steps."""
        return None if self.checkpoints in (EPOCH, NEVER) else int(self.checkpoints)


def check_checkpoints(value: str) -> None:
    """Refuse what is not when a checkpoint is saved."""
    if value not in (EPOCH, NEVER) and not (value.isdecimal() and int(value)):
        stop(
            "cannot save checkpoints",
            f"--checkpoints {value}",
            f"give {EPOCH}, {NEVER}, or the number of steps from one to the next",
        )


def read_options(description: str, run_dir: str) -> Options:
    """Read the command line; ``run_dir`` is where the run goes unless it says otherwise."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder with train/ and val/, or what pack.py made of one")
    add("--cache", type=Path, default=Options.cache, help="where the photo set is made and kept")
    add("--epochs", type=int, default=Options.epochs, help="times through the training files")
    add("--batch-size", type=int, default=Options.batch_size, help="images in a step")
    add("--workers", type=int, default=Options.workers, help="loader processes")
    add("--lr", type=float, default=Options.lr, help="learning rate")
    add("--image-size", type=int, default=Options.image_size, help="side of the input in pixels")
    add("--depth", type=int, default=Options.depth, help="layers of the ResNet")
    add("--limit-batches", type=int, metavar="N", help="stop each epoch after N batches")
    add("--checkpoints", default=Options.checkpoints, help="epoch, never, or every so many steps")
    add("--run-dir", type=Path, default=Path(run_dir), help="where logs and checkpoints go")
    add("--no-obs", action="store_true", help="train without trainobs, for comparison")
    add("--seed", type=int, default=Options.seed, help="of the weights and of the batches")
    return Options(**vars(parser.parse_args()))


def print_result(images: int, seconds: float, accuracy: float) -> None:
    """Print how fast and how well the training went."""
    print(f"\n{images} images in {seconds:.1f} s: {images / seconds:.0f} images/s")
    print(f"validation accuracy {accuracy:.3f}")


def print_next(run_dir: Path, run_log: Path | None) -> None:
    """Print what to look at next; ``run_log`` is where trainobs wrote, None if it did not."""
    if run_log is not None:
        print(f"report:      trainobs report {run_log}")
    print(f"tensorboard: tensorboard --logdir {run_dir}")


def stop(failed: str, found: str, do: str) -> NoReturn:
    """End the program with what failed, what was found and what to do about it."""
    raise SystemExit(f"{failed}\n  found: {found}\n  do:    {do}")
