"""The oldest versions that are tested are those that users are promised."""

from __future__ import annotations

import re

import pytest

from tests.architecture.rooms import ROOT

BOUND = re.compile(r'"([a-z0-9-]+)>=([0-9.]+)"')
PROMISED = (
    *("google-crc32c", "numpy", "pyarrow", "tensorboard", "torch", "lightning"),
    *("nvidia-ml-py", "accelerate", "transformers", "datasets", "torchdata"),
)


@pytest.mark.parametrize("file", ["pyproject.toml", "packages/trainobs-tensorboard/pyproject.toml"])
def test_lower_bounds_are_those_that_are_tested(file: str) -> None:
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    oldest = dict(line.split(" ")[0].split("==") for line in lines if "==" in line)
    assert oldest.keys() >= set(PROMISED)
    for name, bound in BOUND.findall((ROOT / file).read_text()):
        if name in oldest:
            assert (oldest[name] + ".0").startswith(bound + "."), name
