"""bpf/trainobs.h and trainobs.core.kernel say the same, as the built object shows."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pytest

from tests.kernel.btf import VARIABLE, Btf
from trainobs.core.kernel import BATCH, BATCHES, BUCKETS, CELL, RING, FileClass, Op, Phase, Role
from trainobs.probes import syscall_table
from trainobs.probes.kernel_side import _LOSSES, OBJECT

CELLS = len(Op) * len(FileClass) * len(Role)


@pytest.fixture(scope="module")
def btf() -> Btf:
    return Btf(OBJECT)


@pytest.mark.parametrize(
    ("name", "prefix", "python"),
    [
        ("tobs_op", "TOBS_", Op),
        ("tobs_class", "TOBS_", FileClass),
        ("tobs_role", "TOBS_", Role),
        ("tobs_phase", "TOBS_PHASE_", Phase),
    ],
)
def test_enumerations_agree(btf: Btf, name: str, prefix: str, python: type[IntEnum]) -> None:
    ours = {prefix + member.name: member.value for member in python}
    lengths = {"TOBS_OPS": len(Op), "TOBS_CLASSES": len(FileClass), "TOBS_ROLES": len(Role)}
    theirs = btf.enumerators(name)
    assert theirs == ours | {key: lengths[key] for key in theirs.keys() & lengths.keys()}


@pytest.mark.parametrize(
    ("name", "dtype"), [("tobs_cell", CELL), ("tobs_losses", _LOSSES), ("tobs_batch", BATCH)]
)
def test_structures_agree(btf: Btf, name: str, dtype: np.dtype) -> None:
    fields = dtype.fields or {}
    assert btf.layout(name) == {key: (at, kind.itemsize) for key, (kind, at) in fields.items()}


def test_the_control_block_is_the_four_words_that_python_writes(btf: Btf) -> None:
    names = ["root_fd", "root_class", "class_epoch", "infer_data"]
    assert btf.layout("tobs_control") == {name: (4 * i, 4) for i, name in enumerate(names)}


def test_the_step_word_begins_a_cache_line(btf: Btf) -> None:
    assert btf.layout("tobs_clock") == {"word": (0, 8), "padding": (8, 56)}


def test_a_system_call_is_two_bytes(btf: Btf) -> None:
    assert btf.layout("tobs_syscall") == {"op_plus_one": (0, 1), "fd_arg": (1, 1)}
    table = btf.named(VARIABLE, "syscalls").size_or_type
    assert btf.length(table) == syscall_table.SIZE
    assert btf.size(table) == len(syscall_table.syscall_table())


@pytest.mark.parametrize(
    ("name", "entries", "value_bytes"),
    [
        ("step_clock", 1, 64),
        ("step_rows", RING * CELLS, CELL.itemsize),
        ("step_latency", RING, 8 * BUCKETS),
        ("histograms", CELLS, 8 * BUCKETS),
        ("losses", 1, _LOSSES.itemsize),
        ("control", 1, 16),
        ("batches", BATCHES, BATCH.itemsize),
    ],
)
def test_maps_are_as_large_as_python_maps_them(
    btf: Btf, name: str, entries: int, value_bytes: int
) -> None:
    numbers = btf.map_numbers(name)
    assert (numbers["max_entries"], btf.map_value_size(name)) == (entries, value_bytes)
    assert numbers["map_flags"] == 1 << 10  # BPF_F_MMAPABLE
