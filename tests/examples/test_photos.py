from __future__ import annotations

import math
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.examples.conftest import run_script


def read_all(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.JPEG")
    }


def shape_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_one_file_in_ten_is_for_validation(photo_dir: Path) -> None:
    for name in ("astronaut", "cat", "coffee", "dahlia"):
        assert len(list((photo_dir / "train" / name).iterdir())) == 45
        assert len(list((photo_dir / "val" / name).iterdir())) == 5
    assert len(read_all(photo_dir)) == 200


def test_file_sizes_are_those_of_imagenet(photo_dir: Path) -> None:
    sizes = [len(data) for data in read_all(photo_dir).values()]
    assert 90_000 < statistics.mean(sizes) < 130_000
    assert 0.4 < statistics.stdev(map(math.log, sizes)) < 0.6


def test_resolutions_are_those_of_imagenet(photo_dir: Path) -> None:
    shapes = [shape_of(path) for path in photo_dir.rglob("*.JPEG")]
    widths, heights = zip(*shapes, strict=True)
    assert 400 < statistics.mean(widths) < 500
    assert 330 < statistics.mean(heights) < 420


def test_same_arguments_give_the_same_bytes(
    imagenet: SimpleNamespace, photo_dir: Path, tmp_path: Path
) -> None:
    again = imagenet.photos.PhotoSet(tmp_path, count=200, classes=4)
    other = imagenet.photos.PhotoSet(tmp_path, count=200, classes=4, seed=1)
    first = (photo_dir / "train" / "cat" / "cat_000005.JPEG").read_bytes()
    again.path(5).parent.mkdir(parents=True)
    again.make_one(5)
    assert again.path(5).read_bytes() == first
    other.make_one(5)
    assert other.path(5).read_bytes() != first


def test_a_finished_set_is_left_alone(photo_dir: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in photo_dir.rglob("*")}
    done = run_script("photos.py", photo_dir, "--count", 200, "--classes", 4)
    assert done.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in photo_dir.rglob("*")} == before


def test_an_interrupted_set_is_completed(photo_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(photo_dir, tmp_path / "photos")
    shutil.rmtree(copy / "val")
    (copy / "train" / "cat" / "cat_000005.JPEG").rename(copy / "train" / "cat" / "cat_000005.part")
    done = run_script("photos.py", copy, "--count", 200, "--classes", 4)
    assert done.returncode == 0, done.stderr
    assert "21/21" in done.stderr
    assert read_all(copy) == read_all(photo_dir)
    assert not list(copy.rglob("*.part"))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = run_script("photos.py", tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"cannot make the photo set in {tmp_path}\n"
        "  found: files that belong to no photo set\n"
        "  do:    name an empty directory, or delete this one if nobody needs it\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_set_of_other_settings_is_refused(photo_dir: Path) -> None:
    done = run_script("photos.py", photo_dir, "--count", 200, "--classes", 4, "--seed", 1)
    assert done.returncode == 1
    assert "another photo set" in done.stderr
    assert len(read_all(photo_dir)) == 200


@pytest.mark.parametrize(("count", "classes"), [(2000, 1), (2000, 17), (19, 10)])
def test_a_set_that_cannot_be_is_refused(
    imagenet: SimpleNamespace, tmp_path: Path, count: int, classes: int
) -> None:
    with pytest.raises(SystemExit, match=r"(?s)cannot make .* found: .* do: "):
        imagenet.photos.PhotoSet(tmp_path, count, classes)


def test_a_missing_package_is_told_with_its_pip_line(
    imagenet: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagenet.photos, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="pip install scikit-image scikit-learn"):
        imagenet.photos.PhotoSet(tmp_path / "photos", 200, 4).make()
    assert not list(tmp_path.rglob("*.JPEG"))


def test_every_photograph_is_there(imagenet: SimpleNamespace) -> None:
    for name in imagenet.photos.PHOTOGRAPHS:
        for path in imagenet.photos.photographs(name):
            width, height = imagenet.photos.open_photograph(path).size
            assert min(width, height) >= 300


def test_encode_comes_near_the_size_asked_for(imagenet: SimpleNamespace) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    assert len(imagenet.photos.encode(image, 40_000)) == pytest.approx(40_000, rel=0.05)


def test_encode_gives_its_best_where_the_size_is_out_of_reach(imagenet: SimpleNamespace) -> None:
    image = Image.new("RGB", (200, 200))
    assert len(imagenet.photos.encode(image, 1e6)) < 10_000
    assert Image.open(imagenet.photos.io.BytesIO(imagenet.photos.encode(image, 1))).size == (
        200,
        200,
    )
