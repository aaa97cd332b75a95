"""Images for train.py and train_plain.py: read by torchvision where it is installed, else here.

Either way one file is one ``open``, one ``read`` and one JPEG decode in a loader worker, which is
what makes ImageNet heavy on metadata. ``packed.py`` reads the same images out of few large files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from options import Options, stop
from packed import Packed, open_packed
from photos import PhotoSet
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours, as torchvision's
CROP_AREA = (0.35, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
Loader = DataLoader[Any]  # of batches: images (N, 3, size, size), labels (N,)


def find_data(options: Options) -> Path:
    """Return the folder with ``train/`` and ``val/``; without ``--data`` make the photo set."""
    if options.data is None:
        photo_set = PhotoSet(options.cache / "photos")
        photo_set.make()
        photo_set.forget()
        return photo_set.directory
    if open_packed(options.data) is None:
        check_splits(options.data)
    return options.data


def check_splits(root: Path) -> None:
    """Refuse a folder that is no ImageNet."""
    for split in ("train", "val"):
        if not (root / split).is_dir():
            stop(
                "cannot read the data set",
                f"no folder {root / split}",
                "name a folder with train/<class>/*.JPEG and val/<class>/*.JPEG",
            )


def build_loaders(root: Path, options: Options) -> tuple[Loader, Loader, int]:
    """Return the training loader, the validation loader and the number of classes."""
    packed = open_packed(root)
    if packed:
        train, val = (open_images(packed, split, options) for split in ("train", "val"))
    else:
        train = open_folder(root / "train", options.image_size, augment=True)
        val = open_folder(root / "val", options.image_size, augment=False)
    if train.classes != val.classes:
        stop(
            "cannot train",
            f"{len(train.classes)} classes in {root / 'train'}, others in {root / 'val'}",
            "give both the same folders: a label is the folder's place in the alphabet",
        )
    if len(train) < options.batch_size:
        stop(
            "cannot train",
            f"{len(train)} training images, fewer than one batch of {options.batch_size}",
            "give a smaller --batch-size, or more images",
        )
    shared: dict[str, Any] = {
        "batch_size": options.batch_size,
        "num_workers": options.workers,
        "persistent_workers": options.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    shuffles_itself = isinstance(train, IterableDataset)
    train_loader = DataLoader(train, shuffle=not shuffles_itself, drop_last=True, **shared)
    return train_loader, DataLoader(val, **shared), len(train.classes)


def open_images(packed: Packed, split: str, options: Options) -> Dataset[tuple[Tensor, int]]:
    """Return a split of a packed data set, as tensors ``(3, size, size)`` with labels."""
    is_train = split == "train"
    view = build_view(options.image_size, augment=is_train)
    return packed.open(split, view, options.batch_size, options.seed if is_train else None)


def open_folder(root: Path, size: int, *, augment: bool) -> PhotoFolder | ImageFolder:
    """Return the images under ``root/<class>/`` as tensors ``(3, size, size)`` with labels."""
    view = build_view(size, augment=augment)
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision made for another torch
        return PhotoFolder(root, view)
    return datasets.ImageFolder(str(root), view)


def build_view(size: int, *, augment: bool) -> Callable[[Image.Image], Tensor]:
    """Return what makes a tensor ``(3, size, size)`` of an image; at random if it augments."""
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError):
        return RandomView(size) if augment else CentreView(size)
    crop = [
        transforms.RandomResizedCrop(size, CROP_AREA, CROP_ASPECT),
        transforms.RandomHorizontalFlip(),
    ]
    whole = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return transforms.Compose([*(crop if augment else whole), *normal])


class PhotoFolder(Dataset[tuple[Tensor, int]]):
    """The images under ``root/<class>/``, labelled by their folder, as torchvision's ImageFolder.

    Args:
        root: folder with one folder per class.
        view: makes a tensor of an image.
    """

    def __init__(self, root: Path, view: Callable[[Image.Image], Tensor]) -> None:
        self.view = view
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
            if path.suffix.lower() in (".jpeg", ".jpg", ".png")
        ]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image ``(3, size, size)`` and its label."""
        path, label = self.samples[index]
        with path.open("rb") as file:
            try:
                return self.view(Image.open(file).convert("RGB")), label
            except OSError as error:
                raise OSError(f"cannot read the image {path}: {error}") from error


class RandomView:
    """A random crop of an image, resized to ``size`` and mirrored half of the time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the view as a tensor ``(3, size, size)``."""
        area = image.width * image.height * random.uniform(*CROP_AREA)
        aspect = random.uniform(*CROP_ASPECT)
        width = min((area * aspect) ** 0.5, image.width)
        height = min((area / aspect) ** 0.5, image.height)
        left = random.uniform(0, image.width - width)
        top = random.uniform(0, image.height - height)
        view = to_tensor(image, self.size, (left, top, left + width, top + height))
        return view.flip(-1) if random.random() < 0.5 else view


class CentreView:
    """The largest square around the middle of an image, less an eighth, resized to ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the view as a tensor ``(3, size, size)``."""
        side = min(image.width, image.height) * 7 / 8
        left, top = (image.width - side) / 2, (image.height - side) / 2
        return to_tensor(image, self.size, (left, top, left + side, top + side))


def to_tensor(image: Image.Image, size: int, box: tuple[float, float, float, float]) -> Tensor:
    """Return the part of the image in ``box`` as a normalised tensor ``(3, size, size)``."""
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
