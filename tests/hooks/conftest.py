"""What tests of loaders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.utils.data._utils

from tests.hooks.pair import Pair


@pytest.fixture(autouse=True)
def patience_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader waits so long for a worker that failed, and then ends it: by default 5 s."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 1.0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.watch.close()
