"""Both Lightning namespaces, a Hugging Face Trainer, and an ear for what trainobs says."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accelerate.state import GradientState

from tests.integrations.models import NAMESPACES, Lightning
from tests.integrations.trainers import HuggingFace
from trainobs.core.once import Once
from trainobs.integrations import user_warnings

HERE = Path(__file__).parent

Told = Callable[[], list[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Lightning thinks of loaders without workers is no concern of these tests."""
    for item in items:
        if HERE in item.path.parents:
            for category in ("UserWarning", "FutureWarning", "DeprecationWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(scope="session", autouse=True)
def warm_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first training of a process, for which torch and others change the environment."""
    for namespace in NAMESPACES:
        Lightning(namespace, tmp_path_factory.mktemp("warm_up")).fit()
    HuggingFace(tmp_path_factory.mktemp("warm_up")).train(save_strategy="epoch")
    gc.freeze()  # what these have imported, as after the collection


@pytest.fixture(params=NAMESPACES)
def lightning(request: pytest.FixtureRequest, tmp_path: Path) -> Lightning:
    """One namespace after the other, with a directory for runs."""
    return Lightning(request.param, tmp_path)


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[HuggingFace]:
    """A directory for runs of a Hugging Face Trainer."""
    yield HuggingFace(tmp_path)
    # Of Accelerate 1.3 it holds the last loader, and so workers that live on.
    GradientState._reset_state()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """First lines of the warnings of trainobs so far; a test without this must cause none."""
    return lambda: [message.partition("\n")[0] for message in _warnings(caplog)]


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has told nothing yet."""
    monkeypatch.setattr(user_warnings, "_once", Once())


@pytest.fixture(autouse=True)
def silence(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A run that goes well says nothing."""
    yield
    if "told" not in request.fixturenames:
        assert _warnings(caplog) == []


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.name == "trainobs" and record.levelno >= logging.WARNING
    ]
