from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
import torch
from PIL import Image

from tests.examples.conftest import run_script
from trainobs.core.abi import Phase
from trainobs.core.catalogue import phase_metric

TWO_BATCHES = "--epochs 2 --limit-batches 1 --batch-size 8 --depth 10 --image-size 32 --workers 1"
PHASES = [phase_metric(phase) for phase in Phase]


def two_batches(photo_dir: Path, run_dir: Path) -> list[object]:
    return [*TWO_BATCHES.split(), "--data", photo_dir, "--run-dir", run_dir]


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of the run log; what happened outside of a step has no step number."""
    files = sorted((run_dir / "rank=0").glob("steps-*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def total(run_dir: Path, metric: str) -> int:
    return sum(row[metric] for row in read_rows(run_dir))


def test_folder_labels_images_by_their_class(imagenet: SimpleNamespace, photo_dir: Path) -> None:
    folder = imagenet.data.open_folder(photo_dir / "val", 32, augment=False)
    assert folder.classes == ["astronaut", "cat", "coffee", "dahlia"]
    assert [label for _, label in folder] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert folder[0][0].shape == (3, 32, 32)


def test_folder_leaves_unfinished_files_out(imagenet: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "cat_000001.part").write_bytes(b"half")
    Image.new("RGB", (40, 40)).save(tmp_path / "cat" / "cat_000002.JPEG")
    assert len(imagenet.data.PhotoFolder(tmp_path, imagenet.data.CentreView(32))) == 1


def test_pixels_are_normalised_as_imagenet(imagenet: SimpleNamespace) -> None:
    view = imagenet.data.CentreView(8)(Image.new("RGB", (40, 40), (255, 0, 0)))
    red, green, blue = (1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225
    expected = torch.tensor([red, green, blue]).view(3, 1, 1).expand(3, 8, 8)
    torch.testing.assert_close(view, expected)


def test_centre_view_cuts_a_sixteenth_off_each_side(imagenet: SimpleNamespace) -> None:
    framed = Image.new("RGB", (80, 80), "black")
    framed.paste("white", (5, 5, 75, 75))
    white = imagenet.data.CentreView(70)(Image.new("RGB", (80, 80), "white"))
    assert torch.equal(imagenet.data.CentreView(70)(framed), white)


def test_random_view_follows_the_seed(imagenet: SimpleNamespace, photo_dir: Path) -> None:
    with Image.open(next((photo_dir / "train" / "cat").iterdir())) as file:
        image = file.convert("RGB")
    view = imagenet.data.RandomView(32)
    random.seed(7)
    first, second = view(image), view(image)
    random.seed(7)
    assert torch.equal(view(image), first)
    assert not torch.equal(first, second)
    assert first.shape == (3, 32, 32)


# The numbers of parameters that torchvision's documentation gives for these models.
@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_689_512), (34, 21_797_672)])
def test_resnet_is_the_one_of_the_paper(
    imagenet: SimpleNamespace, depth: int, parameters: int
) -> None:
    net = imagenet.model.SmallResNet(imagenet.model.BLOCKS[depth], classes=1000)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    assert "layer2.0.downsample.0.weight" in net.state_dict()  # torchvision's name


def test_resnet_learns(imagenet: SimpleNamespace) -> None:
    torch.manual_seed(0)
    net = imagenet.model.build_resnet(10, classes=3)
    images, labels = torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():  # torch.optim would leave a variable in the environment
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= 0.05 * gradient
    assert losses[-1] < losses[0] / 4


def test_an_unknown_depth_is_refused(imagenet: SimpleNamespace) -> None:
    with pytest.raises(SystemExit, match=r"(?s)--depth 11.*choose one of 10, 18, 34, 50"):
        imagenet.model.build_resnet(11, classes=3)


@pytest.mark.parametrize("setting", [{"epochs": 0}, {"image_size": 8}, {"limit_batches": 0}])
def test_useless_numbers_are_refused(imagenet: SimpleNamespace, setting: dict[str, int]) -> None:
    with pytest.raises(SystemExit, match=r"(?s)cannot train.*give --"):
        imagenet.options.Options(Path("run"), **setting)


def test_a_folder_without_splits_is_refused(imagenet: SimpleNamespace, tmp_path: Path) -> None:
    options = imagenet.options.Options(tmp_path / "run", data=tmp_path)
    with pytest.raises(SystemExit, match=r"(?s)no folder .*train.*name a folder with"):
        imagenet.data.find_data(options)


def test_splits_of_different_classes_are_refused(
    imagenet: SimpleNamespace, photo_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "train").symlink_to(photo_dir / "train")
    (tmp_path / "val" / "cat").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"(?s)4 classes in .*, others in .*the same folders"):
        imagenet.data.build_loaders(tmp_path, imagenet.options.Options(tmp_path))


def test_less_than_a_batch_is_refused(
    imagenet: SimpleNamespace, photo_dir: Path, tmp_path: Path
) -> None:
    options = imagenet.options.Options(tmp_path, batch_size=181)
    with pytest.raises(SystemExit, match="180 training images, fewer than one batch of 181"):
        imagenet.data.build_loaders(photo_dir, options)


@pytest.mark.parametrize("script", ["train.py", "train_plain.py"])
def test_trains_without_trainobs(script: str, photo_dir: Path, tmp_path: Path) -> None:
    # Lightning asks every installed package for callbacks; that much is there.
    absent = tmp_path / "trainobs"
    (absent / "integrations").mkdir(parents=True)
    (absent / "integrations" / "auto.py").write_text("callbacks = list")
    arguments = two_batches(photo_dir, tmp_path / "run")
    done = run_script(script, *arguments, "--no-obs", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "16 images in " in done.stdout
    assert "trainobs report" not in done.stdout
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.fixture(scope="module")
def train(
    photo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, str]]:
    """Trains a script on two batches: where its run is, and what it printed; once for each."""

    @cache
    def trained(script: str, checkpoints: str) -> tuple[Path, str]:
        run_dir = tmp_path_factory.mktemp("two-batches") / "run"
        done = run_script(script, *two_batches(photo_dir, run_dir), "--checkpoints", checkpoints)
        assert done.returncode == 0, done.stderr
        return run_dir, done.stdout

    return trained


@pytest.mark.parametrize(("when", "saved"), [("never", []), ("1", [0, 1]), ("epoch", [0, 1])])
@pytest.mark.parametrize("script", ["train.py", "train_plain.py"])
def test_checkpoints_are_saved_when_asked_for(
    script: str, when: str, saved: list[int], train: Callable[[str, str], tuple[Path, str]]
) -> None:
    run_dir, _ = train(script, when)
    rows = [row for row in read_rows(run_dir) if row["step"] is not None]
    assert [row["step"] for row in rows if row["phase/checkpoint_ns"]] == saved
    assert bool(list(run_dir.rglob("checkpoints/*"))) == bool(saved)


def test_without_no_obs_it_would_be_imported(photo_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "trainobs.py").write_text("raise ImportError('not to be imported')")
    arguments = two_batches(photo_dir, tmp_path / "run")
    assert "not to be imported" in run_script("train_plain.py", *arguments, path=tmp_path).stderr


@pytest.mark.parametrize("script", ["train.py", "train_plain.py"])
def test_trains_with_trainobs(script: str, train: Callable[[str, str], tuple[Path, str]]) -> None:
    run_dir, printed = train(script, "epoch")
    assert "16 images in " in printed
    assert f"trainobs report {run_dir}" in printed
    steps = [row for row in read_rows(run_dir) if row["step"] is not None]
    assert [(row["step"], row["epoch"]) for row in steps] == [(0, 0), (1, 1)]
    for phase in ("forward", "backward", "optimizer"):
        assert all(row[f"phase/{phase}_ns"] > 0 for row in steps)


@pytest.fixture(scope="module", params=["train.py", "train_plain.py"])
def epoch_dir(
    request: pytest.FixtureRequest, photo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run directory of one whole epoch, of five batches."""
    run_dir = tmp_path_factory.mktemp("epoch") / "run"
    whole_epoch = (
        "--epochs 1 --batch-size 36 --depth 10 --image-size 32 --workers 2"  # 5 x 36 = 180
    )
    arguments = [*whole_epoch.split(), "--data", photo_dir, "--run-dir", run_dir]
    done = run_script(request.param, *arguments)
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.mark.needs_bpf
def test_every_image_and_checkpoint_is_seen(epoch_dir: Path, photo_dir: Path) -> None:
    files = [path.stat().st_size for path in photo_dir.rglob("*.JPEG")]
    (checkpoint,) = (epoch_dir / "checkpoints").iterdir()
    assert total(epoch_dir, "io/data_open_count") == len(files)
    assert total(epoch_dir, "io/data_read_bytes") == sum(files)
    assert total(epoch_dir, "io/checkpoint_write_bytes") == checkpoint.stat().st_size


def test_less_than_a_tenth_of_an_epoch_is_in_no_phase(epoch_dir: Path) -> None:
    steps = [row for row in read_rows(epoch_dir) if row["step"] is not None]
    assert len(steps) == 5
    whole = sum(row["step/duration_ns"] for row in steps)
    parts = {name: sum(row[name] or 0 for row in steps) for name in PHASES}
    assert sum(parts.values()) == pytest.approx(whole, rel=0.02)
    others = [row["phase/other_ns"] / row["step/duration_ns"] for row in steps]
    assert median(others) < 0.1, "of a step that nothing else on the machine held up"
    assert parts["phase/forward_ns"] + parts["phase/backward_ns"] > 0.2 * whole
