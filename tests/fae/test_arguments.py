"""What public functions say of arguments of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.cases import profile_of
from tests.fae.parity import Model
from tests.fae.skewed import kjt, power_law
from tests.fae.small import case
from trainobs import fae
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEEmbeddingCollectionSharder,
    FAEProfile,
    HotRowReservation,
    ShuffleScheduler,
    TableProfile,
    calibrate,
    calibrate_dataset,
    measure,
    pack,
    pack_data_module,
    propose_refresh,
)
from trainobs.fae.calibration import calibrator
from trainobs.fae.packing import loader
from trainobs.fae.profile.arguments import byte_count


@pytest.mark.parametrize(
    "make",
    [
        FAEEmbeddingBagCollectionSharder,
        FAEEmbeddingCollectionSharder,
        HotRowReservation,
        lambda profile: pack([], profile),
        lambda profile: pack_data_module(object(), profile),
    ],
)
@pytest.mark.parametrize("given", ["hot-rows.npz", None, Path("hot-rows.npz")])
def test_what_is_no_profile_is_refused(make: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(SettingError) as error:
        make(given)
    assert error.value.found == f"a {type(given).__name__} in the place of a profile"
    assert "FAEProfile.load(path)" in error.value.do


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": "x"}, "window='x'"),
        ({"window": 1.5}, "window=1.5"),
        ({"window": 0}, "window=0"),
        ({"batch_size": float("nan")}, "batch_size=nan"),
        ({"seed": None}, "seed=None"),
        ({"scheduler": "adaptive"}, "a str in the place of a scheduler"),
        ({"kjt": 3.5}, "found: 3.5"),
        ({"kjt": [None]}, r"found: \[None\]"),
        ({"loader": None}, "a NoneType in the place of a loader"),
        ({"loader": KeyedJaggedTensor.empty()}, "a KeyedJaggedTensor in the place of a loader"),
    ],
)
def test_what_cannot_be_packed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        pack(**{"loader": [], "profile": profile_of(case()), **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hot_bytes": "1e400"}, "hot_bytes is no amount of memory\n  found: '1e400'"),
        ({"hot_bytes": "4 Gib per rank"}, "hot_bytes is no amount of memory"),
        ({"confidence": "0.9"}, "confidence is no probability"),
        ({"margin": None}, "margin is no share"),
        ({"seed": "a"}, "seed='a'"),
        ({"source": 3}, "an? int in the place of a loader"),
        ({"tables": "t0"}, "a str among them, without name"),
        ({"tables": {"t0": 20}}, "a str among them, without name"),
        ({"tables": [nn.Embedding(20, 8)]}, "an Embedding among them, without name"),
        ({"kjt": 3.5}, "found: 3.5"),
        ({"workers": -1}, "workers=-1"),
        ({"bounds_check_mode": "bogus"}, "bounds_check_mode is none that FBGEMM has\n  found: 'bo"),
        ({"bounds_check_mode": 0}, "found: 0\n  do:    give the training's: FATAL, IGNORE, NONE"),
        ({"bounds_check_mode": object()}, "bounds_check_mode is none that FBGEMM has"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(settings: dict[str, Any], message: str) -> None:
    model = Model(case()).collection
    arguments = {"source": [], "tables": model, "hot_bytes": 100, "progress": False, **settings}
    with pytest.raises(SettingError, match=message):
        calibrate(**arguments)


@pytest.mark.parametrize("given", [4e9, np.int64(4_000_000_000), "4GB", "4e9"])
def test_bytes_may_be_any_whole_number(given: Any) -> None:
    assert byte_count(given, "hot_bytes") == 4_000_000_000
    assert type(byte_count(given, "hot_bytes")) is int


@pytest.mark.parametrize("given", [1.5, float("nan"), float("inf"), True, np.float64(-3), [1]])
def test_bytes_are_a_whole_number(given: Any) -> None:
    with pytest.raises(SettingError, match="hot_bytes is no amount of memory"):
        byte_count(given, "hot_bytes")


@pytest.mark.parametrize("place", ["/proc/calibration", __file__, f"{__file__}/state", 3])
def test_a_calibration_that_cannot_be_kept_is_refused_before_it_reads(place: Any) -> None:
    class Unread:
        def __iter__(self) -> Any:
            raise AssertionError("it was read")

    tables = Model(case()).collection
    with pytest.raises(SettingError, match="cannot keep the state of the calibration"):
        calibrate(Unread(), tables=tables, hot_bytes=100, progress=False, resume=place)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """As `calibrate` writes a state of numbers, and `save` a profile."""
    ids = power_law(np.random.default_rng(3), 5000, 4000)
    batches = [kjt(ids[first : first + 200], ["f"]) for first in range(0, 4000, 200)]
    size = np.int64(5000)
    config = EmbeddingBagConfig(
        name="t", num_embeddings=size, embedding_dim=np.int32(4), feature_names=["f"]
    )
    profile = calibrate(
        batches,
        [config],
        np.int64(20_000),
        seed=np.int64(3),
        margin=np.float32(0.25),
        confidence=np.float32(0.9),
        resume=tmp_path / "state",
        progress=False,
    )
    by_hand = FAEProfile((TableProfile("t", size, size, ("f",), np.arange(3), size),), size)
    for each in (profile, by_hand):
        each.save(tmp_path / "profile.npz")
        assert FAEProfile.load(tmp_path / "profile.npz").fingerprint == each.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 99}, "confidence is no probability"),
        ({"seed": "a"}, "seed='a'"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_a_bad_number_is_refused_before_a_data_set_is_read(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        calibrate_dataset(object(), [], input_id="id", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: measure("hot-rows.npz", {}), "a str in the place of a profile"),
        (lambda p: measure(p, {}, confidence=99), "confidence is no probability"),
        (lambda p: measure(p, {}, inputs=0), "inputs=0"),
        (lambda p: propose_refresh("hot-rows.npz", "run", []), "a str in the place of a profile"),
        (lambda p: propose_refresh(p, "run", [], confidence=0), "confidence is no probability"),
        (lambda p: propose_refresh(p, "run", [], least_gain="x"), "least_gain is no share"),
    ],
)
def test_a_bad_number_is_refused_before_a_run_is_judged(
    ask: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        ask(profile_of(case()))


def test_data_without_a_name_is_not_measured() -> None:
    with pytest.raises(SettingError, match="a list in the place of loaders"):
        measure(profile_of(case()), [])  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["x", None, [1.0, 2.0]])
def test_a_loss_that_is_no_number_is_refused(loss: Any) -> None:
    with pytest.raises(SettingError, match="in the place of a test loss"):
        ShuffleScheduler().report(loss)


def test_hot_ids_that_are_no_array_are_refused() -> None:
    with pytest.raises(FAEError, match="table 't'\n  found: a list"):
        TableProfile("t", 10, 8, ("f",), [1, 2], 36)  # type: ignore[arg-type]
    assert TableProfile("t", 10, 8, ("f",), np.array([1, 2]), 36).hot_bytes == 72


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(FAEError, match="cannot read the FAE profile in None"):
        FAEProfile.load(None)  # type: ignore[arg-type]


def test_a_folder_of_fae_does_not_hide_the_function_of_its_name():
    assert (fae.calibrate, fae.pack) == (calibrator.calibrate, loader.pack)
