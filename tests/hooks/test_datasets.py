"""Where data lies, read off the attributes that data sets have, and never by running their code."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import accelerate
import datasets
import numpy as np
import pytest
import torch
import tqdm
from accelerate.state import AcceleratorState
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from tests.kernel.privileges import another_user
from trainobs.hooks.datasets import data_roots_of, workers_of


class With(Dataset[int]):
    """A data set that has some attributes."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """train/{cat,dog}/{0,1}.jpeg, extra/ and numbers.npy"""
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "train" / name / f"{number}.jpeg").write_bytes(b"image")
    (tmp_path / "extra").mkdir()
    np.save(tmp_path / "numbers.npy", np.arange(8))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["root", "data_dir", "root_dir", "directory", "folder", "path", "filename", "file_path"]
)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_found_under_its_usual_names(place, name, kind):
    loader = DataLoader(With(**{name: kind(place / "train")}))
    assert data_roots_of(loader) == [place / "train"]


def test_an_image_folder_has_one_root(place):
    samples = [(str(path), 0) for path in sorted(place.rglob("*.jpeg"))]
    assert data_roots_of(With(root=str(place / "train"), samples=samples)) == [place / "train"]


@pytest.mark.parametrize("name", ["samples", "imgs", "files", "paths", "image_paths"])
def test_files_in_a_list_lead_to_their_directories(place, name):
    files = sorted(place.rglob("*.jpeg"))
    data = With(**{name: files})
    assert data_roots_of(data) == [place / "train" / "cat", place / "train" / "dog"]


def test_the_middle_and_the_end_of_a_long_list_are_looked_at(place):
    cat, dog = (place / "train" / name / "0.jpeg" for name in ("cat", "dog"))
    assert len(data_roots_of(With(files=[cat] * 50_000 + [dog] * 50_000))) == 2


def test_wrapped_data_sets_are_looked_into(place):
    one, other = With(root=place / "train"), With(root=place / "extra")
    both = ConcatDataset([Subset(one, [0, 1]), Subset(Subset(other, [0, 1]), [0])])
    assert data_roots_of(DataLoader(both)) == [place / "extra", place / "train"]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's CombinedLoader
@pytest.mark.parametrize(
    "wrap",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, [b]),
        lambda a, b: {"a": a, "b": b},
        lambda a, b: CombinedLoader({"a": a, "b": b}),
    ],
)
def test_several_loaders_are_looked_into(place, wrap):
    one, other = DataLoader(With(root=place / "train")), DataLoader(With(root=place / "extra"))
    assert data_roots_of(wrap(one, other)) == [place / "extra", place / "train"]


def test_a_mapped_array_leads_to_its_file(place):
    numbers = np.load(place / "numbers.npy", mmap_mode="r")
    assert data_roots_of(With(numbers=numbers)) == [place / "numbers.npy"]


def test_a_root_below_another_is_left_out(place):
    data = [With(root=place / "train" / "cat"), With(root=place / "train"), With(path=place)]
    assert data_roots_of(data[:2]) == [place / "train"]
    assert data_roots_of(data) == [place]


def test_a_link_is_followed_to_where_the_data_is(place):
    (place / "link").symlink_to(place / "train")
    assert data_roots_of(With(root=place / "link")) == [place / "train"]


@pytest.mark.parametrize("root", ["/", "~", "/usr/.."])
def test_what_holds_everything_is_no_root(root):
    assert data_roots_of(With(root=os.path.expanduser(root))) == []


def test_a_home_behind_a_link_is_no_root_either(place, monkeypatch):
    (place / "home").symlink_to(place / "train")
    monkeypatch.setenv("HOME", str(place / "home"))
    assert data_roots_of(With(root=place / "home")) == []


@pytest.mark.parametrize(
    "value",
    [
        "/no/such/place",
        "",
        "a\0b",
        "x" * 5000,
        "s3://bucket/key",
        "loop",
        b"/usr",
        3,
        None,
        object(),
    ],
)
def test_what_is_no_path_that_exists_is_passed_over(place, monkeypatch, value):
    monkeypatch.chdir(place)
    (place / "loop").symlink_to("loop")
    assert data_roots_of(With(root=value, files=[value], samples=[(value, 0)])) == []


def test_names_below_a_root_do_not_make_the_current_directory_one(place, monkeypatch):
    monkeypatch.chdir(place)
    data = With(root=place / "train", files=["cat/0.jpeg", "dog/1.jpeg", "0.jpeg"])
    assert data_roots_of(data) == [place / "train"]


def test_a_directory_that_one_may_not_enter_is_passed_over(place):
    (place / "train").chmod(0)
    with another_user():  # root may enter every directory
        assert data_roots_of(With(root=place / "train" / "cat")) == []


def test_properties_never_run(place):
    class Lazy(With):
        @property
        def root(self) -> Path:
            raise AssertionError("a property was run")

        samples = files = dataset = path = root

    assert data_roots_of(DataLoader(Lazy(folder=place / "extra"))) == [place / "extra"]


def test_a_data_set_of_tensors_has_no_roots():
    loader = DataLoader(TensorDataset(torch.zeros(3)))
    assert data_roots_of(loader) == []


def test_what_holds_itself_comes_to_an_end(place):
    data = SimpleNamespace(root=place)
    data.dataset = data
    assert data_roots_of(data) == [place]


def test_objects_without_attributes_of_their_own_have_no_roots():
    assert data_roots_of(range(3)) == data_roots_of(None) == data_roots_of("/usr") == []


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's CombinedLoader
def test_workers_are_those_of_all_loaders_together():
    one, two = (DataLoader([1, 2], num_workers=number) for number in (1, 2))
    assert workers_of(two) == 2
    assert workers_of({"a": one, "b": [two]}) == 3
    assert workers_of(CombinedLoader([one, two])) == 3
    assert workers_of(DataLoader([1])) == 0
    assert workers_of([1, 2]) is None
    assert workers_of(iter([1])) is None


@pytest.fixture
def tables(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[datasets.Dataset]:
    """Two data sets of Hugging Face, loaded from disk."""
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # or a thread of it would stay
    loaded = []
    for number in range(2):
        kept = place / f"table-{number}"
        datasets.Dataset.from_dict({"value": list(range(8))}).save_to_disk(kept)
        loaded.append(datasets.load_from_disk(kept))
    return loaded


def test_the_file_that_a_data_set_of_hugging_face_maps_is_found(place, tables):
    (file,) = (place / "table-0").glob("*.arrow")
    table = tables[0]
    for data in (table, table.select([3, 1]), table.with_format("torch"), DataLoader(table)):
        assert data_roots_of(data) == [file]
    assert data_roots_of(datasets.Dataset.from_dict({"value": [1]})) == []  # in memory


def test_so_are_those_of_several_that_were_put_together(place, tables):
    files = sorted(place.glob("table-*/*.arrow"))
    assert data_roots_of(datasets.concatenate_datasets(tables)) == files
    assert len(files) == 2


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_loader_that_accelerate_prepared_is_looked_into(place, dispatch):
    config = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(DataLoader(With(root=place / "train"), num_workers=2))
    assert data_roots_of(loader) == [place / "train"]
    assert workers_of(loader) == 2
    AcceleratorState._reset_state(reset_partial_state=True)
