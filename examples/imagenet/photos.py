"""Make a small ImageNet from real photographs: the same folders, the same file sizes.

Usage::

    python examples/imagenet/photos.py DIR [--count 2000] [--classes 10] [--seed 0]

writes ``DIR/train/<class>/*.JPEG`` and ``DIR/val/<class>/*.JPEG``, one file in ten under ``val``.
Each class is one photograph that scikit-image or scikit-learn ships; each file is a random crop of
it: scaled, flipped, its colours shifted, with sensor grain. The same arguments give the same bytes.
A finished set is left as it is, an interrupted one is completed.

What it is for: a loader sees many small files of ImageNet's size. What it is not for: accuracy.
The validation files are other crops of the *same* photographs, so a small network gets near 100 %.

Sizes: MLPerf Storage counts 114,660 bytes a sample for ImageNet-1k (``record_length_bytes`` in
``resnet50_h100.yaml`` of github.com/mlcommons/storage); the archive says the same: 147,897,477,120
bytes of tar for 1,281,167 files. No source for the spread was found: the log-normal width and the
0.63 bytes a pixel (114,660 bytes over the often quoted 469 x 387 pixels) are our choice.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from options import stop
from PIL import Image, ImageOps
from tqdm import tqdm

MEAN_BYTES = 114_660
SIZE_SIGMA = 0.5  # nine files in ten lie between 44 and 230 KB
BYTES_PER_PIXEL = 0.63
PIXELS_SIGMA = 0.1  # files of one size differ in resolution by about a tenth
ASPECTS = (4 / 3, 4 / 3, 3 / 2, 3 / 4)
QUALITIES = range(50, 101)
GRAIN = 4.0  # grey levels; an enlarged crop without grain is too smooth to reach its size
VAL_EVERY = 10
MARKER = "photos.json"
RECIPE = 1  # raise it when the same arguments no longer give the same files

SKIMAGE, SKLEARN = ("skimage", "data"), ("sklearn", "datasets/images")
PHOTOGRAPHS: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "astronaut": (SKIMAGE, ("astronaut.png",)),
    "cat": (SKIMAGE, ("chelsea.png",)),
    "coffee": (SKIMAGE, ("coffee.png",)),
    "dahlia": (SKLEARN, ("flower.jpg",)),
    "galaxies": (SKIMAGE, ("hubble_deep_field.jpg",)),
    "motorcycle": (SKIMAGE, ("motorcycle_left.png", "motorcycle_right.png")),
    "retina": (SKIMAGE, ("retina.jpg",)),
    "rocket": (SKIMAGE, ("rocket.jpg",)),
    "temple": (SKLEARN, ("china.jpg",)),
    "tissue": (SKIMAGE, ("ihc.png",)),
    "bricks": (SKIMAGE, ("brick.png",)),
    "cameraman": (SKIMAGE, ("camera.png",)),
    "coins": (SKIMAGE, ("coins.png",)),
    "grass": (SKIMAGE, ("grass.png",)),
    "gravel": (SKIMAGE, ("gravel.png",)),
    "moon": (SKIMAGE, ("moon.png",)),
}


@dataclass(frozen=True)
class PhotoSet:
    """A set of photographs: where it lies and everything its bytes depend on."""

    directory: Path
    count: int = 2000
    classes: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a set that no directory could hold."""
        if not 2 <= self.classes <= len(PHOTOGRAPHS):
            stop(
                "cannot make the photo set",
                f"{self.classes} classes, and photographs for {len(PHOTOGRAPHS)}",
                f"ask for --classes 2 to {len(PHOTOGRAPHS)}",
            )
        if self.count < 2 * self.classes:
            stop(
                "cannot make the photo set",
                f"{self.count} files for {self.classes} classes",
                f"ask for --count {2 * self.classes} or more: a train and a val file per class",
            )

    def make(self) -> None:
        """Make every file that is not there yet, on all cores."""
        self._claim_directory()
        missing = [index for index in range(self.count) if not self.path(index).exists()]
        if not missing:
            return
        for name in self.names():
            photographs(name)  # a missing package is told here, not by every process of the pool
            for split in ("train", "val"):
                (self.directory / split / name).mkdir(parents=True, exist_ok=True)
        with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
            done = pool.imap_unordered(self.make_one, missing, chunksize=8)
            for _ in tqdm(done, desc="photographs", total=len(missing), unit="file"):
                pass

    def make_one(self, index: int) -> None:
        """Make file number ``index``; it appears under its name only when it is whole."""
        rng = np.random.default_rng([self.seed, index])
        sources = photographs(self.names()[index % self.classes])
        size_bytes = rng.lognormal(math.log(MEAN_BYTES) - SIZE_SIGMA**2 / 2, SIZE_SIGMA)
        image = draw_view(open_photograph(sources[rng.integers(len(sources))]), size_bytes, rng)
        path = self.path(index)
        part = path.with_suffix(".part")
        part.write_bytes(encode(image, size_bytes))
        part.replace(path)

    def forget(self) -> None:
        """Drop the files from the page cache, so that a first epoch reads them from the disk.

        As it would ImageNet, which no memory holds. Pages not yet on the disk are sent there first.
        """
        for index in range(self.count):
            descriptor = os.open(self.path(index), os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def path(self, index: int) -> Path:
        """Where file number ``index`` lies; the classes take turns."""
        name = self.names()[index % self.classes]
        split = "train" if index // self.classes % VAL_EVERY else "val"
        return self.directory / split / name / f"{name}_{index:06d}.JPEG"

    def names(self) -> list[str]:
        """The names of the classes."""
        return list(PHOTOGRAPHS)[: self.classes]

    def _claim_directory(self) -> None:
        """Mark an empty directory as this set's own; refuse one that belongs to something else."""
        marker = self.directory / MARKER
        settings = {
            "made_by": "trainobs examples/imagenet/photos.py",
            "recipe": RECIPE,
            "count": self.count,
            "classes": self.classes,
            "seed": self.seed,
        }
        if self.directory.exists() and any(self.directory.iterdir()):
            found = read_marker(marker)
            if found != settings:
                stop(
                    f"cannot make the photo set in {self.directory}",
                    f"another photo set: {found}" if found else "files that belong to no photo set",
                    "name an empty directory, or delete this one if nobody needs it",
                )
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps(settings, indent=2) + "\n")


def read_marker(path: Path) -> dict[str, object] | None:
    """Return the settings in a marker file, or None where there is none to read."""
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None


def photographs(name: str) -> list[Path]:
    """Return the photographs of a class, as files of the installed packages."""
    (package, folder), files = PHOTOGRAPHS[name]
    spec = find_spec(package)  # finds the folder without the seconds that an import takes
    roots = spec.submodule_search_locations if spec else None
    found = [Path(root, folder, file) for root in roots or () for file in files]
    if not found or not all(path.exists() for path in found):
        stop(
            "cannot make the photo set",
            f"no {' or '.join(files)} in the package {package!r}",
            "pip install scikit-image scikit-learn",
        )
    return found


@cache
def open_photograph(path: Path) -> Image.Image:
    """Decode a photograph, once per process."""
    return Image.open(path).convert("RGB")


def draw_view(photograph: Image.Image, size_bytes: float, rng: np.random.Generator) -> Image.Image:
    """Return a random view of the photograph, with as many pixels as ``size_bytes`` are worth."""
    aspect = rng.choice(ASPECTS)
    pixels = size_bytes / BYTES_PER_PIXEL * rng.lognormal(0, PIXELS_SIGMA)
    width, height = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))

    widest = min(photograph.width, photograph.height * aspect)
    crop_width = widest * rng.uniform(0.5, 1)
    crop_height = crop_width / aspect
    left = rng.uniform(0, photograph.width - crop_width)
    top = rng.uniform(0, photograph.height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)

    view = photograph.resize((width, height), Image.Resampling.BICUBIC, box=box)
    return shift_colours(ImageOps.mirror(view) if rng.random() < 0.5 else view, rng)


def shift_colours(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Shift contrast and brightness of each colour a little, and add grain."""
    pixels = np.asarray(image, dtype=np.float32)
    contrast, brightness = rng.uniform(0.8, 1.2, size=3), rng.uniform(-20, 20, size=3)
    grain = GRAIN * rng.standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    shifted = pixels * contrast.astype(np.float32) + brightness.astype(np.float32) + grain
    return Image.fromarray(shifted.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, size_bytes: float) -> bytes:
    """Encode as JPEG, in the quality whose file comes nearest to ``size_bytes``."""

    @cache
    def jpeg(quality: int) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()

    above = bisect_left(QUALITIES, size_bytes, key=lambda quality: len(jpeg(quality)))
    candidates = [jpeg(quality) for quality in QUALITIES[max(above - 1, 0) : above + 1]]
    return min(candidates, key=lambda data: abs(len(data) - size_bytes))


def main() -> None:
    """Make the set that the command line asks for and print what it holds."""
    parser = argparse.ArgumentParser(description="Make a small ImageNet from real photographs.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--count", type=int, default=PhotoSet.count, help="files in all")
    parser.add_argument("--classes", type=int, default=PhotoSet.classes, help="folders per split")
    parser.add_argument("--seed", type=int, default=PhotoSet.seed)
    photo_set = PhotoSet(**vars(parser.parse_args()))
    photo_set.make()
    sizes = [photo_set.path(index).stat().st_size for index in range(photo_set.count)]
    print(
        f"{photo_set.directory}: {len(sizes)} files in {photo_set.classes} classes, "
        f"{sum(sizes) / 1e6:.0f} MB, mean {np.mean(sizes) / 1e3:.0f} KB, "
        f"median {np.median(sizes) / 1e3:.0f} KB, largest {max(sizes) / 1e3:.0f} KB"
    )


if __name__ == "__main__":
    main()
