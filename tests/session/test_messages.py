"""What is unpacked is what was packed, and shares nothing with it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.samples import batch
from trainobs.session.messages import pack, unpack


def sent(thing: object) -> object:
    fd = pack(thing)
    try:
        return unpack(fd)
    finally:
        os.close(fd)


def test_steps_arrive_as_they_were():
    before = batch(range(2000), step__duration_ns=range(2000), io__read_bytes=range(2000))
    after = sent(before)
    assert list(after.columns) == list(before.columns)
    for name, column in before.columns.items():
        np.testing.assert_array_equal(after.columns[name], column)
    np.testing.assert_array_equal(after.step, before.step)
    after.step[0] = 7  # a copy, and one that can be written to
    assert before.step[0] == 0


def test_more_arrays_than_one_call_writes_arrive():
    arrays = [np.full(3, number) for number in range(3000)]
    assert [array.tolist() for array in sent(arrays)] == [array.tolist() for array in arrays]


def test_columns_of_a_table_by_column_arrive():
    table = np.arange(12.0).reshape(3, 4).T
    np.testing.assert_array_equal(sent([table, table[::2]])[1], table[::2])


def test_what_stays_is_replaced_by_what_stands_for_it():
    stays, stands_in = object(), object()
    fd = pack([stays, 1], {id(stays): "one"})
    assert unpack(fd, {"one": stands_in}) == [stands_in, 1]
    os.close(fd)


def test_what_cannot_be_packed_leaves_no_descriptor():
    before = os.listdir("/proc/self/fd")
    with pytest.raises(Exception, match="pickle|local object"):
        pack(lambda: None)
    assert os.listdir("/proc/self/fd") == before
