"""Ranks for the tests of the sharder: this process alone, or a pair of others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    import torchrec  # noqa: F401

from tests import lone_rank as alone
from tests.fae import ranks
from tests.fae.ranks import Ranks

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
def lone_rank() -> Iterator[None]:
    """This process as the only rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, alone.lone_rank():
        for name, value in ranks.environment(0, 1).items():
            patch.setenv(name, value)
        logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
        yield
        logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
