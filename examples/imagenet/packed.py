"""Images packed into few large files: read here for data.py, written by pack.py.

A packed folder holds the encoded images of a folder of files, byte for byte, so that only where
bytes lie differs, and not what is decoded::

    packed.json                           which format, what is in it, and of what it was made
    train-000000.tar, val-000000.tar ...  tar: shards as webdataset's, KEY.jpg and KEY.cls
    train.bin, train.npz, val...          memmap: all images one after another; offsets and labels
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed
from options import stop
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

MARKER = "packed.json"
FORMATS = ("tar", "memmap")
LABEL = "cls"
READ_BYTES = 1 << 20

View = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class Packed:
    """A packed folder.

    Attributes:
        root: the folder.
        format: one of ``FORMATS``.
        classes: their names; a label is the place of one.
        shards: split -> images in each of its shards.
    """

    root: Path
    format: str
    classes: tuple[str, ...]
    shards: dict[str, list[int]]

    def open(
        self, split: str, view: View, batch_size: int, seed: int | None
    ) -> TarShards | MemmapImages:
        """Return a data set of the split; with a seed a tar shuffles its shards itself."""
        if self.format == "memmap":
            return MemmapImages(self.root, split, self.classes, view)
        paths = [shard_path(self.root, split, n) for n in range(len(self.shards[split]))]
        shards = list(zip(paths, self.shards[split], strict=True))
        return TarShards(shards, self.classes, view, batch_size, seed)


def open_packed(root: Path) -> Packed | None:
    """Return what is packed in a folder, or None where it is no packed folder."""
    try:
        marker = json.loads((root / MARKER).read_text())
        return Packed(root, marker["format"], tuple(marker["classes"]), marker["shards"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, OSError) as error:
        stop(
            f"cannot read the packed data set {root}",
            f"{MARKER}: {type(error).__name__}: {error}",
            "delete the folder and pack it again",
        )


def shard_path(root: Path, split: str, number: int) -> Path:
    """Where a shard of a tar lies."""
    return root / f"{split}-{number:06}.tar"


class MemmapImages(Dataset[tuple[Tensor, int]]):
    """Images of one file that is mapped into memory, in any order.

    Args:
        root: the packed folder.
        split: ``train`` or ``val``.
        classes: their names.
        view: makes a tensor of an image.
    """

    def __init__(self, root: Path, split: str, classes: Sequence[str], view: View) -> None:
        self.root = root
        self.classes = list(classes)
        self.view = view
        self._file = root / f"{split}.bin"
        with np.load(root / f"{split}.npz") as index:
            self._offsets, self._labels = index["offsets"], index["labels"]
        self._data: np.memmap[Any, Any] | None = None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image ``(3, size, size)`` and its label."""
        if self._data is None:  # not in __init__: a worker that is spawned would get a copy
            self._data = np.memmap(self._file, np.uint8, "r")
        encoded = self._data[self._offsets[index] : self._offsets[index + 1]]
        return self.view(decode(encoded.tobytes())), int(self._labels[index])


class TarShards(IterableDataset[tuple[Tensor, int]]):
    """Images of tar shards, read from begin to end, as webdataset does.

    In each epoch the shards come in another order, as one long row of images. Each worker takes a
    part of that row, of whole batches, so that an epoch has as many batches as in other formats.
    Within a shard the order stays: pack.py shuffles. Epochs are counted in the worker, so workers
    have to be persistent.

    Args:
        shards: path and number of images of each.
        classes: their names.
        view: makes a tensor of an image.
        batch_size: of the loader.
        seed: of the order of shards, without the images that fill no batch; None: all, in order.
    """

    def __init__(
        self,
        shards: Sequence[tuple[Path, int]],
        classes: Sequence[str],
        view: View,
        batch_size: int,
        seed: int | None,
    ) -> None:
        self.root = shards[0][0].parent
        self.shards = list(shards)
        self.classes = list(classes)
        self.view = view
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of images."""
        return sum(count for _, count in self.shards)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Yield the images ``(3, size, size)`` and labels of this worker's part of the epoch."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            stop("cannot read tar shards", "several ranks", "train in one process, or with files")
        order = list(self.shards)
        if self.seed is not None:
            random.Random(f"{self.seed} {self._epoch}").shuffle(order)
        self._epoch += 1
        for path, first, end in pieces(order, *self._part()):
            for encoded, label in read_shard(path, first, end):
                yield self.view(decode(encoded)), label

    def _part(self) -> tuple[int, int]:
        """First image of this worker in the row of all, and the end of its part."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        whole, rest = divmod(len(self), self.batch_size)
        batches = whole + (rest > 0 and self.seed is None)
        each, more = divmod(batches, workers)
        # Those with one more come first, as the loader asks them in turn.
        first, end = (each * n + min(n, more) for n in (number, number + 1))
        return first * self.batch_size, min(end * self.batch_size, len(self))


def pieces(
    shards: Sequence[tuple[Path, int]], first: int, end: int
) -> Iterator[tuple[Path, int, int]]:
    """Yield the shards of which images ``first`` to ``end`` of the row consist, and which of each.

    Returns:
        Path, first image within the shard, and end.
    """
    begins = [0, *accumulate(count for _, count in shards)]
    at = first
    while at < end:
        number = bisect_right(begins, at) - 1
        path, count = shards[number]
        start = at - begins[number]
        stop_at = min(count, end - begins[number])
        yield path, start, stop_at
        at = begins[number] + stop_at


def read_shard(path: Path, first: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield images ``first`` to ``end`` of a shard, encoded, with their labels."""
    with tarfile.open(path, "r|", bufsize=READ_BYTES) as tar:  # a stream: it never seeks
        encoded = b""
        for number, member in enumerate(islice(tar, 2 * end)):
            file = tar.extractfile(member) if number >= 2 * first else None
            if file is None:
                continue
            if number % 2 == 0:
                encoded = file.read()
            elif member.name.endswith(f".{LABEL}"):
                yield encoded, int(file.read())
            else:
                stop(
                    f"cannot read {path}",
                    f"{member.name} where the .{LABEL} of an image was expected",
                    "pack the images again with pack.py",
                )


def decode(encoded: bytes) -> Image.Image:
    """Return an image in RGB."""
    return Image.open(io.BytesIO(encoded)).convert("RGB")
