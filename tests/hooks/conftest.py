"""What tests of loaders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hooks.pair import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.watch.close()
