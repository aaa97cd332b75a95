"""Pack an ImageNet of files into few large ones: tar shards, or one file to map into memory.

Usage::

    python examples/imagenet/pack.py DATA OUT --format tar       # or memmap
    python examples/imagenet/train.py --data OUT

DATA is a folder with ``train/<class>/*.JPEG`` and ``val/<class>/*.JPEG``. The images stay as they
are, encoded; ``packed.py`` says what the files of OUT hold. Training images come in a random order,
the same each time, since within a shard nobody shuffles them afterwards. OUT appears when it is
whole. One that was made of the same files is left as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from data import check_splits, open_folder
from options import stop
from packed import FORMATS, LABEL, MARKER, shard_path
from tqdm import tqdm

RECIPE = 1  # raise it when the same files no longer give the same packed folder
SPLITS = ("train", "val")
SHARD_IMAGES = 1000
FEWEST_SHARDS = 16  # of a small set, so that each of several workers has some
BLOCK_BYTES = 512  # of a tar; a file takes a header, and whole blocks
SPARE_BYTES = 64 << 20  # that stay free

Sample = tuple[Path, int]


@dataclass(frozen=True)
class Images:
    """A folder of images, as training reads it.

    Attributes:
        classes: their names.
        splits: split -> path and label of each image.
        sizes: split -> bytes of each, shape (n,).
    """

    classes: list[str]
    splits: dict[str, list[Sample]]
    sizes: dict[str, np.ndarray]

    @classmethod
    def from_folder(cls, root: Path) -> Images:
        """Find all images below ``train/`` and ``val/``."""
        check_splits(root)
        found = {split: open_folder(root / split, 32, augment=False) for split in SPLITS}
        splits = {
            split: [(Path(path), label) for path, label in folder.samples]
            for split, folder in found.items()
        }
        for split, samples in splits.items():
            if not samples:
                stop("cannot pack the images", f"none in {root / split}", "give a folder with some")
        sizes = {
            split: np.array([path.stat().st_size for path, _ in samples], np.int64)
            for split, samples in splits.items()
        }
        return cls(found["train"].classes, splits, sizes)

    def facts(self) -> dict[str, Any]:
        """What tells this folder from others: classes, and images and bytes of each split."""
        return {
            "classes": self.classes,
            "images": {split: len(samples) for split, samples in self.splits.items()},
            "bytes": {split: int(sizes.sum()) for split, sizes in self.sizes.items()},
        }

    def need_bytes(self) -> int:
        """What any format takes at most: of a tar, for each image two headers and whole blocks."""
        count = sum(map(len, self.splits.values()))
        return sum(self.facts()["bytes"].values()) + 4 * BLOCK_BYTES * count

    def shuffled(self, split: str) -> list[Sample]:
        """The images of a split in the order in which they are packed."""
        samples = self.splits[split]
        if split != "train":
            return samples
        return [samples[n] for n in np.random.default_rng(0).permutation(len(samples))]


def pack(images: Images, target: Path, form: str) -> bool:
    """Pack images into a new folder; False where it is there already.

    Args:
        images: what to pack.
        target: the folder; its parents are made.
        form: one of ``FORMATS``.
    """
    if form not in FORMATS:
        stop("cannot pack the images", f"format {form}", f"choose one of {', '.join(FORMATS)}")
    facts = {"recipe": RECIPE, "format": form, **images.facts()}
    if target.exists():
        check_same(target, facts)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    check_room(target.parent, images.need_bytes())
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    part.mkdir()
    write = {"tar": write_tar, "memmap": write_memmap}[form]
    try:
        shards = {split: write(part, split, images.shuffled(split)) for split in SPLITS}
        write_file(part / MARKER, json.dumps({**facts, "shards": shards}, indent=2).encode())
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        stop(f"cannot pack the images into {target}", str(error), "see to that, and pack again")
    part.rename(target)
    return True


def check_same(target: Path, facts: dict[str, Any]) -> None:
    """Refuse a folder that was not made of these images."""
    try:
        found = json.loads((target / MARKER).read_text())
    except (OSError, ValueError):
        found = {}
    if {name: found.get(name) for name in facts} != facts:
        stop(
            f"cannot pack the images into {target}",
            "other images, or another format" if found else "a folder that pack.py did not make",
            "name another folder, or delete this one if nobody needs it",
        )


def check_room(folder: Path, need_bytes: int) -> None:
    """Refuse a disk that is too small."""
    free = shutil.disk_usage(folder).free
    if free < need_bytes + SPARE_BYTES:
        stop(
            f"cannot pack the images into {folder}",
            f"{free / 1e6:,.0f} MB free; they take {need_bytes / 1e6:,.0f} MB, and "
            f"{SPARE_BYTES / 1e6:,.0f} MB are to stay free",
            "free some, or name a folder on another disk",
        )


def write_tar(folder: Path, split: str, samples: list[Sample]) -> list[int]:
    """Write the shards of a split; return the number of images in each."""
    count = min(SHARD_IMAGES, -(-len(samples) // FEWEST_SHARDS))
    shards = [min(count, len(samples) - first) for first in range(0, len(samples), count)]
    rows = contents(split, samples)
    for number, images in enumerate(shards):
        with shard_path(folder, split, number).open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for index, (suffix, content, label) in enumerate(islice(rows, images)):
                    key = f"{number * count + index:08}"
                    add(tar, f"{key}.{suffix}", content)
                    add(tar, f"{key}.{LABEL}", str(label).encode())
            sync(file)
    return shards


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file; its owner and time are the same everywhere."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def write_memmap(folder: Path, split: str, samples: list[Sample]) -> list[int]:
    """Write the images of a split and their index; return their number."""
    with (folder / f"{split}.bin").open("wb") as file:
        lengths = [file.write(content) for _, content, _ in contents(split, samples)]
        sync(file)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    index = io.BytesIO()
    np.savez(index, offsets=offsets, labels=np.array([label for _, label in samples], np.int64))
    write_file(folder / f"{split}.npz", index.getvalue())
    return [len(samples)]


def write_file(path: Path, content: bytes) -> None:
    """Write a small file, to the disk."""
    with path.open("wb") as file:
        file.write(content)
        sync(file)


def sync(file: io.BufferedWriter) -> None:
    """Send a file to the disk: pages that are not there cannot leave the page cache."""
    file.flush()
    os.fsync(file.fileno())


def contents(split: str, samples: list[Sample]) -> Iterator[tuple[str, bytes, int]]:
    """Yield kind, content and label of each image, under a progress bar."""
    for path, label in tqdm(samples, f"packing {split}", unit="image", disable=None):
        yield "png" if path.suffix.lower() == ".png" else "jpg", path.read_bytes(), label


def main() -> None:
    """Pack as the command line says."""
    parser = argparse.ArgumentParser(description="Pack an ImageNet of files into few large ones.")
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with train/ and val/")
    parser.add_argument("out", type=Path, metavar="OUT", help="the new folder")
    parser.add_argument("--format", choices=FORMATS, default="tar")
    options = parser.parse_args()
    began = time.perf_counter()
    images = Images.from_folder(options.data)
    made = pack(images, options.out, options.format)
    facts = images.facts()
    count, size = (sum(facts[name].values()) for name in ("images", "bytes"))
    how = f"packed in {time.perf_counter() - began:.1f} s" if made else "there already"
    print(f"{options.out}: {count} images, {size / 1e6:.0f} MB, as {options.format}: {how}")


if __name__ == "__main__":
    main()
