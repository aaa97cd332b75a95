"""Ranks for the tests of the sharder: this process alone, or a pair of others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    import torchrec  # noqa: F401

from tests.fae import ranks
from tests.fae.ranks import Ranks, join

FOREIGN_WARNINGS = r"ignore:.*:Warning:(torch|torchrec|fbgemm_gpu|tensordict)\."


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """TorchRec uses parts of torch that are deprecated; that is no fault of a test here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(FOREIGN_WARNINGS))


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(HERE in item.path.parents for item in session.items):
        ranks.origin = ranks.Origin()


def pytest_sessionfinish() -> None:
    if ranks.origin is not None:
        ranks.origin.stop()


@pytest.fixture(scope="session")
def pair() -> Iterator[Ranks]:
    """Two ranks, shared by all tests."""
    two = Ranks(2)
    yield two
    two.stop()


@pytest.fixture(scope="module")
def lone_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the only rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    store: Path = tmp_path_factory.mktemp("rank") / "store"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            patch.setenv(name, "0")  # put back what was there afterwards
        join(0, 1, str(store))
        logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
        yield
        logging.disable(logging.NOTSET)
        dist.destroy_process_group()
    torch.set_num_threads(threads)
