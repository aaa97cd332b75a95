"""Ids of uint64 beyond what int64 holds: what calibration and packing say of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.fae.skewed import kjt, matrix, quiet
from trainobs.core.errors import FAEError
from trainobs.fae import pack
from trainobs.fae.kjt import split


def test_a_bad_id_of_2_to_the_63_and_more_is_told_as_it_was_given(caplog):
    ids = matrix(0, 2000).astype(np.uint64)
    ids[2, 100] = 2**63 + 5
    given = [kjt(ids)]
    profile = quiet(given, margin=0)
    split._TOLD.clear()
    list(pack(given, profile))
    told = f"{5 - 2**63} ({2**63 + 5} where ids are uint64)"
    assert f"table 't_large', such as {told}" in caplog.text
    assert f"rows that are not there: id {told}, 1 of 2000" in caplog.text
    with pytest.raises(FAEError, match=re.escape(f"found: id {told}")):
        quiet(given, margin=0, bounds_check_mode="fatal")
