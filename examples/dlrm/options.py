"""The command line that the three scripts share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class Options:
    """What a training run may be told; the defaults are a demo of minutes on two cores."""

    run_dir: Path
    data: tuple[Path, ...] = ()
    strict: bool = False
    rows_scale: float = 0.1
    dim: int = 16
    batch_size: int = 2048
    steps: int | None = None
    val_steps: int = 50
    workers: int = 2
    lr: float = 0.03
    embedding_every: str = "auto"
    hot_bytes: str = "4MB"
    no_obs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no training can use."""
        smallest = {"dim": 1, "batch_size": 1, "steps": 1, "val_steps": 1, "workers": 0}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is not None and value < least:
                flag = "--" + name.replace("_", "-")
                stop("cannot train", f"{flag} {value}", f"give {flag} {least} or more")
        if not 0 < self.rows_scale <= 100:
            stop("cannot train", f"--rows-scale {self.rows_scale}", "give more than 0, 1 is Kaggle")
        if self.embedding_every not in ("auto", "off") and not self.embedding_every.isdecimal():
            stop(
                "cannot observe the lookups",
                f"--embedding-every {self.embedding_every}",
                'give a number of steps, "auto" or "off"',
            )
        for path in self.data:
            if not path.is_file():
                stop(
                    "cannot read the data",
                    f"no file {path}",
                    "name train.txt of the Kaggle set, or days of the Terabyte set, .gz or not",
                )

    @property
    def sampling(self) -> int | str:
        """``embedding_every`` as trainobs takes it."""
        every = self.embedding_every
        return int(every) if every.isdecimal() else every


def read_options(description: str, run_dir: str, *, hot_rows: bool = False) -> Options:
    """Read the command line; ``run_dir`` is where the run goes unless it says otherwise.

    ``hot_rows``: whether the training keeps any.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="Criteo's files, .gz or not",
    )
    add("--strict", action="store_true", help="stop at a malformed line instead of skipping it")
    add("--rows-scale", type=float, default=Options.rows_scale, help="rows of a table / Kaggle's")
    add("--dim", type=int, default=Options.dim, help="values in a row of a table")
    add("--batch-size", type=int, default=Options.batch_size, help="inputs in a step, of one rank")
    add("--steps", type=int, help="steps to train; none: all of the data, or 500 made-up batches")
    add("--val-steps", type=int, default=Options.val_steps, help="batches to validate on")
    add("--workers", type=int, default=Options.workers, help="loader processes, of one rank")
    add("--lr", type=float, default=Options.lr, help="learning rate of Adagrad")
    if hot_rows:
        add("--hot-bytes", default=Options.hot_bytes, help="memory of hot rows, such as 256MiB")
    else:  # what hot rows bring is read from the run logs
        add("--no-obs", action="store_true", help="train without trainobs, for comparison")
    add("--embedding-every", default=Options.embedding_every, help='steps: N, "auto" or "off"')
    add("--run-dir", type=Path, default=Path(run_dir), help="where logs go")
    add("--seed", type=int, default=Options.seed, help="of the weights and of made-up data")
    values = vars(parser.parse_args())
    return Options(**{**values, "data": tuple(values["data"])})


def print_result(inputs: int, seconds: float, auc: float, malformed: int) -> None:
    """Print how fast and how well the training went."""
    print(f"\n{inputs} inputs in {seconds:.1f} s: {inputs / seconds:.0f} inputs/s")
    print(f"validation AUC {auc:.4f}")
    if malformed:
        print(f"malformed lines skipped: {malformed}")


def print_report(run_log: Path) -> None:
    """Print what ``trainobs report --full`` has to say of a run."""
    from trainobs.cli import main as trainobs

    trainobs(["report", str(run_log), "--full"])


def stop_unvalidated() -> NoReturn:
    """End the program since validation had no batch."""
    stop(
        "nothing was validated",
        "no lines of Criteo's format to validate on, on some rank",
        "give --data files in the format of the Kaggle set, with lines for each rank",
    )


def stop(failed: str, found: str, do: str) -> NoReturn:
    """End the program with what failed, what was found and what to do about it."""
    raise SystemExit(f"{failed}\n  found: {found}\n  do:    {do}")
