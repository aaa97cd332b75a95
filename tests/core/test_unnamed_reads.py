"""Whether what nobody named may be the training data."""

import numpy as np
import pytest

from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.unnamed_reads import unnamed_in


@pytest.mark.parametrize("op", [Op.READ, Op.FAULT_FILL])
def test_what_a_loop_without_a_loader_reads_may_be_its_data(op):
    moved = np.zeros((len(Op), len(FileClass), len(Role)), np.int64)
    moved[op, FileClass.OTHER, Role.MAIN] = 100 << 20
    assert unnamed_in(moved, 100, named=False, waited=False) == 100 << 20
    assert unnamed_in(moved, 100, named=False, waited=True) is None
