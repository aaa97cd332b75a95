"""Windows of steps: means and the slowest, without the first step of the run."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.analysis.levels import CHUNK, Levels, levels


def chunk(values, every=4, number=0):
    return Levels({"x": np.asarray(values, np.float32)}, peaks=("x",)).chunk(every, number)


def test_a_window_has_the_mean_of_its_known_steps_and_the_slowest_of_them():
    nothing = np.full(4, np.nan)
    found = chunk([1, 2, 3, 7, 5, np.nan, 9, 1, *nothing, 8, 6])
    assert found["x"] == [4, 5, None, 7]
    assert found["x/peak"] == [7, 9, None, 8]
    assert found["x/peak_row"] == [3, 6, 8, 12]


def test_the_first_step_is_in_no_window_of_several():
    steps = [1000, 2, 3, 4, 5]
    assert chunk(steps)["x"] == [3, 5]
    assert chunk(steps)["x/peak_row"] == [3, 4]
    assert chunk(steps, every=1)["x"] == steps


def test_a_later_chunk_is_whole():
    found = chunk([9, *[1.0] * (4 * CHUNK - 1), 5, 3], number=1)
    assert (found["x"], found["x/peak_row"]) == ([4], [4 * CHUNK])


@pytest.mark.parametrize("steps", [[], [1000], [np.nan] * 9])
def test_what_has_no_value_is_left_out(steps):
    assert chunk(steps) == {}


def test_the_coarsest_level_fits_on_a_screen():
    assert levels(0) == levels(CHUNK) == [1]
    assert levels(CHUNK + 1) == [1, 4]
    assert levels(1_000_000)[-1] == 1024
