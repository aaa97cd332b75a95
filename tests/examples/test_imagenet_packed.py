"""Images in tar shards and in one mapped file: the same as in files, in every way to read them."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from tqdm import tqdm

from tests.examples.conftest import IMAGENET, modules_of, run_script

TRAIN, BATCH = 43, 8  # no whole number of batches
# On few CPUs torch warns of workers; three of them cannot share the batches evenly.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
FORMATS = ("files", "tar", "memmap")


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    tqdm.monitor_interval = 0  # or its thread stays
    with modules_of(IMAGENET, "options", "data", "pack", "packed") as modules:
        yield modules


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small images of noise in two classes, one of them a PNG."""
    root = tmp_path_factory.mktemp("tiny") / "images"
    random = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", 5)):
        for number in range(count):
            suffix = "png" if number == 3 else "JPEG"
            path = root / split / ("cat", "dog")[number % 3 == 0] / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def packed(
    example: SimpleNamespace, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The folder of the tiny images in a format."""
    folder = tmp_path_factory.mktemp("packed")

    def pack(form: str) -> Path:
        if form == "files":
            return tiny
        example.pack.pack(example.pack.Images.from_folder(tiny), folder / form, form)
        return folder / form

    return pack


def fingerprint(image: Image.Image) -> torch.Tensor:
    return torch.tensor(list(hashlib.sha256(image.tobytes()).digest()), dtype=torch.uint8)


def opened(example: SimpleNamespace, root: Path, split: str, seed: int | None) -> object:
    found = example.packed.open_packed(root)
    if found:
        return found.open(split, fingerprint, BATCH, seed)
    return example.data.PhotoFolder(root / split, fingerprint)


def seen(loader: DataLoader) -> list[tuple[bytes, int]]:
    """Hash and label of each image of an epoch."""
    return [
        (bytes(image.tolist()), int(label))
        for images, labels in loader
        for image, label in zip(images, labels, strict=True)
    ]


def true_images(root: Path, split: str) -> Counter[tuple[bytes, int]]:
    """The same, straight from the files."""
    found: Counter[tuple[bytes, int]] = Counter()
    for path in (root / split).rglob("*.*"):
        with Image.open(path) as image:
            label = ("cat", "dog").index(path.parent.name)
            found[bytes(fingerprint(image.convert("RGB")).tolist()), label] += 1
    return found


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("form", FORMATS)
def test_an_epoch_has_each_image_once(
    example: SimpleNamespace, packed: Callable[[str], Path], tiny: Path, form: str, workers: int
) -> None:
    dataset = opened(example, packed(form), "train", seed=None)
    shuffle = form != "tar"
    loader = DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=workers)
    assert Counter(seen(loader)) == true_images(tiny, "train")
    assert len(dataset) == TRAIN


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_shuffled_tar_has_as_many_batches_as_files(
    example: SimpleNamespace, packed: Callable[[str], Path], tiny: Path, workers: int
) -> None:
    dataset = opened(example, packed("tar"), "train", seed=1)
    loader = DataLoader(
        dataset, BATCH, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    first, second = seen(loader), seen(loader)
    assert len(loader) == TRAIN // BATCH
    for epoch in (first, second):
        assert len(epoch) == TRAIN // BATCH * BATCH
        assert Counter(epoch) <= true_images(tiny, "train")
    assert first != second  # the shards come in another order


def test_validation_keeps_its_order(
    example: SimpleNamespace, packed: Callable[[str], Path]
) -> None:
    of_format = [
        seen(DataLoader(opened(example, packed(form), "val", None), BATCH)) for form in FORMATS
    ]
    assert of_format[0] == of_format[1] == of_format[2]


def test_training_images_are_packed_in_a_random_order(
    example: SimpleNamespace, packed: Callable[[str], Path]
) -> None:
    dataset = opened(example, packed("memmap"), "train", None)
    labels = [label for _, label in dataset]
    assert sorted(labels) != labels


@pytest.mark.parametrize("form", FORMATS)
def test_the_loaders_of_a_training(
    example: SimpleNamespace, packed: Callable[[str], Path], tmp_path: Path, form: str
) -> None:
    options = example.options.Options(tmp_path, data=packed(form), batch_size=8, workers=0)
    root = example.data.find_data(options)
    train, val, classes = example.data.build_loaders(root, options)
    images, labels = next(iter(train))
    assert (images.shape, labels.shape, classes) == ((8, 3, 96, 96), (8,), 2)
    assert (len(train), len(val)) == (5, 1)


def test_shards_are_those_of_webdataset(packed: Callable[[str], Path], tiny: Path) -> None:
    shards = sorted(packed("tar").glob("train-*.tar"))
    assert len(shards) == 15  # at least 16 were asked for; of 3 images, and of 43
    with tarfile.open(shards[0]) as tar:
        names = tar.getnames()
        label = tar.extractfile(names[1]).read()
    assert names[:2] in (["00000000.jpg", "00000000.cls"], ["00000000.png", "00000000.cls"])
    assert label in (b"0", b"1")
    suffixes: Counter[str] = Counter()
    for shard in shards:
        with tarfile.open(shard) as tar:
            suffixes.update(Path(name).suffix for name in tar.getnames())
    assert suffixes == {".jpg": 42, ".png": 1, ".cls": 43}


def test_a_tar_of_another_kind_is_told(example: SimpleNamespace, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg"):
            example.pack.add(tar, name, b"x")
    with pytest.raises(SystemExit, match=r"(?s)cannot read .*b\.jpg where the \.cls.*pack the"):
        list(example.packed.read_shard(tmp_path / "other.tar", 0, 1))


def test_what_is_packed_is_left_alone(
    example: SimpleNamespace, packed: Callable[[str], Path], tiny: Path
) -> None:
    folder = packed("memmap")
    before = (folder / "train.bin").stat().st_mtime_ns
    assert not example.pack.pack(example.pack.Images.from_folder(tiny), folder, "memmap")
    assert (folder / "train.bin").stat().st_mtime_ns == before


def test_other_images_are_refused(
    example: SimpleNamespace, packed: Callable[[str], Path], tiny: Path, tmp_path: Path
) -> None:
    images = example.pack.Images.from_folder(tiny)
    with pytest.raises(SystemExit, match=r"(?s)other images, or another format.*name another"):
        example.pack.pack(images, packed("tar"), "memmap")
    (tmp_path / "mine").mkdir()
    with pytest.raises(SystemExit, match="a folder that pack.py did not make"):
        example.pack.pack(images, tmp_path / "mine", "tar")
    with pytest.raises(SystemExit, match="choose one of tar, memmap"):
        example.pack.pack(images, tmp_path / "new", "zip")


def test_a_killed_packing_is_begun_again(
    example: SimpleNamespace, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "train.bin").write_bytes(b"half")
    assert example.pack.pack(example.pack.Images.from_folder(tiny), tmp_path / "new", "memmap")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_too_small_a_disk_is_refused(
    example: SimpleNamespace, tiny: Path, disk: Callable[[str], Path]
) -> None:
    room = disk("size=1m")
    images = example.pack.Images.from_folder(tiny)
    with pytest.raises(SystemExit, match=r"(?s)cannot pack.*1 MB free; they take 0 MB.*free some"):
        example.pack.pack(images, room / "tar", "tar")
    assert list(room.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(
    example: SimpleNamespace,
    tiny: Path,
    disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = disk("size=40k")  # another program took the rest after the check
    monkeypatch.setattr(example.pack, "check_room", lambda *_: None)
    with pytest.raises(SystemExit, match=r"(?s)cannot pack the images.*No space left on device"):
        example.pack.pack(example.pack.Images.from_folder(tiny), room / "tar", "tar")
    assert list(room.iterdir()) == []


def test_a_damaged_folder_is_told(example: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "packed.json").write_text("{")
    with pytest.raises(SystemExit, match=r"(?s)cannot read the packed data set.*pack it again"):
        example.packed.open_packed(tmp_path)


def test_the_script_tells_what_it_did(tiny: Path, tmp_path: Path) -> None:
    done = run_script("pack.py", tiny, tmp_path / "out", "--format", "memmap")
    assert done.returncode == 0, done.stderr
    assert "48 images" in done.stdout
    assert "as memmap: packed in" in done.stdout
    marker = json.loads((tmp_path / "out" / "packed.json").read_text())
    assert marker["images"] == {"train": 43, "val": 5}
    assert sorted(os.listdir(tmp_path / "out")) == [
        *("packed.json", "train.bin", "train.npz", "val.bin", "val.npz")
    ]
    wrong = run_script("pack.py", tmp_path, tmp_path / "other")
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 3
    assert "name a folder with train/<class>/*.JPEG" in wrong.stderr


@pytest.mark.parametrize("value", ["0", "often", "-3", ""])
def test_useless_checkpoints_are_refused(example: SimpleNamespace, value: str) -> None:
    with pytest.raises(SystemExit, match=r"(?s)cannot save checkpoints.*give epoch, never, or"):
        example.options.Options(Path("run"), checkpoints=value)
