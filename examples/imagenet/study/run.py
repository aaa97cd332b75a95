"""Run a grid of trainings on ImageNet, observed: formats, page cache, workers, checkpoints.

Usage::

    python examples/imagenet/study/run.py --out runs/study               # 72 runs of the photo set
    python examples/imagenet/study/run.py --out DIR --data /data/imagenet --limit-batches 200 \
        --depth 50 --image-size 224 --batch-size 256 --workers 0,4,8,16
    python examples/imagenet/study/figures.py DIR                        # figures and tables

Each run is a process of its own, ``train.py`` under trainobs. Its run log is kept, its checkpoints
are not. A grid that was stopped goes on where it was, and one with other values adds to the same
folder. A run that fails is told, and tried again the next time.

Cold: the files of the data set are taken out of the page cache before training (``page_cache.py``
says what that leaves). Warm: they are read through. Where the page cache is not as it should be
then, nothing is trained: that run failed. What it held of them is kept with the run.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import environment
from example import EXAMPLE, FILES, FORMATS, SPLITS, Images, Options, find_data, pack, stop
from grid import COLD, OUTPUT, RESULT, RUN_LOG, WARM, Grid, Run, claim, write_json
from page_cache import evict, files_in, read_through, resident_ratio

SAME = ("epochs", "batch_size", "image_size", "depth", "limit_batches")
"""Options of train.py that are the same in all runs."""

COLD_AT_MOST, WARM_AT_LEAST = 0.01, 0.99  # of the data set in the page cache
CHECKPOINT_BYTES = 500 << 20  # of a ResNet-50 with its optimizer, and some to spare
PATIENCE_S = 10.0
HOPELESS = 3  # runs that fail before any other ends well
REMEDY = {
    COLD: "end what maps or locks these files; what lies in a tmpfs is never cold",
    WARM: "free memory for the whole data set, or leave warm out",
}
"""What to do where the page cache is not as it should be."""


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Run a grid of trainings on ImageNet, observed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="where runs are kept; one that is there goes on")
    add("--data", type=Path, help="folder with train/ and val/; none: make the photo set")
    add("--work", type=Path, default=Options.cache, help="where photo set and formats are kept")
    add("--formats", type=words, default="files,tar,memmap", help="how the images are stored")
    add("--workers", type=words, default="0,1,2,4", help="loader processes")
    add("--cache", type=words, default="cold,warm", help="the page cache as training begins")
    add("--checkpoints", type=words, default="epoch", help="epoch, never, or every so many steps")
    add("--repeats", type=int, default=3, help="runs of each cell")
    add("--epochs", type=int, default=Options.epochs, help="times through the training images")
    add("--batch-size", type=int, default=Options.batch_size, help="images in a step")
    add("--image-size", type=int, default=Options.image_size, help="side of the input in pixels")
    add("--depth", type=int, default=Options.depth, help="layers of the ResNet")
    add("--limit-batches", type=int, metavar="N", help="stop each epoch after N batches")
    return parser.parse_args()


def words(text: str) -> list[str]:
    """Return the values of an option that takes several."""
    return [word for word in text.split(",") if word]


def main() -> int:
    """Run what is missing of the grid; 1 if a run failed, 130 after Ctrl-C."""
    given = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts are left
    try:
        return run_grid(given)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on, with the run that was stopped")
        return 130
    except OSError as error:
        print(flush=True)  # behind the line of a run
        stop("cannot run the grid", str(error), "see to that; the same command goes on")


def run_grid(given: argparse.Namespace) -> int:
    """Run what is missing of the grid of a command line; 1 if a run failed."""
    grid = Grid.product(given.formats, given.cache, given.workers, given.checkpoints, given.repeats)
    same = {name: getattr(given, name) for name in SAME}
    options = Options(given.out, data=given.data, cache=given.work, **same)
    root = find_data(options).resolve()
    images = Images.from_folder(root)
    facts = {**same, "data": str(root), **images.facts()}
    with alone(given.out):
        claim(given.out, facts, grid)
        folders = {
            form: stored(images, root, form, given.work)
            for form in FORMATS
            if form in given.formats
        }
        failed = run_all(list(grid.runs(given.out)), folders, same)
    print(f"figures and tables: python {EXAMPLE.parent.name}/imagenet/study/figures.py {given.out}")
    return 1 if failed else 0


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Refuse to run two grids in one folder at a time."""
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        stop("cannot run the grid", f"another one runs in {out}", "wait for it, or end it")
    try:
        yield
    finally:
        os.close(descriptor)


def stored(images: Images, root: Path, form: str, work: Path) -> Path:
    """Return the folder with the images in a format; it is made once for each data set."""
    if form == FILES:
        return root
    digest = hashlib.sha256(f"{root} {json.dumps(images.facts())}".encode()).hexdigest()[:8]
    folder = work / "packed" / f"{root.name}-{digest}" / form
    if pack(images, folder, form):
        print(f"{form}: packed into {folder}", flush=True)
    return folder


def run_all(runs: list[Run], folders: dict[str, Path], same: dict[str, Any]) -> int:
    """Run all that are not done; return how many failed."""
    missing = [run for run in runs if not run.is_done]
    print(f"{len(runs)} runs, {len(runs) - len(missing)} of them done", flush=True)
    failed, began = 0, time.monotonic()
    for number, run in enumerate(missing):
        left = (time.monotonic() - began) / number * (len(missing) - number) if number else 0
        about = f", about {left / 60:.0f} min left" if number else ""
        print(f"[{number + 1}/{len(missing)}{about}] {run.cell}, run {run.repeat}: ", end="")
        sys.stdout.flush()
        result = run_one(run, folders[run.cell.format], same)
        failed += result["outcome"] != "ok"
        print(told(run, result), flush=True)
        if failed == number + 1 == HOPELESS and number + 1 < len(missing):
            stop(
                "cannot run the grid",
                f"the first {HOPELESS} runs all failed, as told above",
                "see to that; the same command tries them again",
            )
    if failed:
        print(f"{failed} of {len(missing)} runs failed; the same command tries them again")
    return failed


def told(run: Run, result: dict[str, Any]) -> str:
    """Return what became of a run, in words."""
    if result["outcome"] != "ok":
        output = run.folder / OUTPUT
        if not output.exists():
            return f"{result['outcome']}; not trained\n    {REMEDY[run.cell.cache]}"
        last = output.read_text(errors="replace").strip().splitlines()[-3:]
        return "\n    ".join([f"{result['outcome']}; the end of {output}:", *last])
    return f"{result['seconds']:.1f} s"


def run_one(run: Run, data: Path, same: dict[str, Any]) -> dict[str, Any]:
    """Train once, and keep the result."""
    check_room(run)
    shutil.rmtree(run.folder, ignore_errors=True)  # of one that failed, or was stopped
    run.folder.mkdir(parents=True)
    machine = environment(data)
    files = list(image_files(data))
    prepare = evict if run.cell.cache == COLD else read_through
    prepare(path for path, _ in files)
    resident = resident_ratio(files)
    began = time.time()
    outcome = why_not(run.cell.cache, resident) or observed(run, data, same)
    result = {
        "cell": asdict(run.cell),
        "repeat": run.repeat,
        "outcome": outcome,
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        "seconds": time.time() - began,
        "resident_ratio": resident,
        "environment": machine,
    }
    write_json(run.folder / RESULT, result)
    return result


def image_files(data: Path) -> Iterator[tuple[Path, int]]:
    """Files of a data set with their sizes; of a folder of files, nothing beside its splits."""
    splits = [data / split for split in SPLITS if (data / split).is_dir()]
    for folder in splits or [data]:
        yield from files_in(folder)


def observed(run: Run, data: Path, same: dict[str, Any]) -> str:
    """Train once; return what came of it: ok, or how it failed."""
    status = train(run, data, same)
    has_log = (run.folder / RUN_LOG / "run.json").exists()
    shutil.rmtree(run.folder / RUN_LOG / "checkpoints", ignore_errors=True)
    if status:
        return f"failed with status {status}"
    return "ok" if has_log else "failed without a run log"


def why_not(cache: str, resident: float | None) -> str | None:
    """Why the page cache was not as the cell says; None where it was, or nobody knows."""
    if resident is None:
        return None
    is_so = resident <= COLD_AT_MOST if cache == COLD else resident >= WARM_AT_LEAST
    return None if is_so else f"not {cache}: {resident:.1%} of the data set were in memory"


def check_room(run: Run) -> None:
    """Refuse a disk on which a checkpoint may have no room."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(run.folder.parent).free
    if free < CHECKPOINT_BYTES:
        stop(
            "cannot run the grid",
            f"{free / 1e6:,.0f} MB free in {run.folder.parent}, less than "
            f"{CHECKPOINT_BYTES / 1e6:,.0f} MB",
            "free some; the same command goes on",
        )


def train(run: Run, data: Path, same: dict[str, Any]) -> int:
    """Run train.py with the settings of a cell; return its exit status."""
    flags = {
        **{name: value for name, value in same.items() if value is not None},
        "data": data,
        "workers": run.cell.workers,
        "checkpoints": run.cell.checkpoints,
        "run_dir": run.folder / RUN_LOG,
    }
    command = [sys.executable, str(EXAMPLE / "train.py")]
    for name, value in flags.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    with (run.folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process alone, which ends that one
            preexec_fn=end_with_parent,
        )
        try:
            return process.wait()
        except BaseException:
            end(process)
            raise


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, even if that is killed."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a training with its workers."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
