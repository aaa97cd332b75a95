"""bpf/trainobs.h and trainobs.core.abi say the same, as the built object shows."""

from __future__ import annotations

import mmap
import platform
import re
from enum import IntEnum
from struct import Struct

import numpy as np
import pytest

from tests.kernel.btf import STRUCT, VARIABLE, Btf
from trainobs.core.abi import (
    ACCESS,
    BATCH,
    CALL_NUMBERS,
    CALLS,
    CELL,
    COUNTS,
    FILE,
    FILE_KEY,
    LOSSES,
    OWN_CELL,
    OWN_COUNTERS,
    PEER,
    PEER_KEY,
    RING,
    SEEN,
    SEEN_CALLS,
    SEEN_STEP,
    SLOTS,
    TOTAL,
    TOTAL_KEY,
    Event,
    FileClass,
    FileOp,
    Op,
    Phase,
    Role,
)
from trainobs.probes import block_requests, file_counts, own_programs, shared, syscall_table
from trainobs.probes.session_maps import KINDS
from trainobs.session.file_watch import EPOCH


@pytest.fixture(scope="module")
def seen_btf() -> Btf:
    return Btf(shared.OBJECTS / f"seen.{platform.machine()}.bpf.o")


def test_what_is_seen_from_outside_agrees(seen_btf: Btf) -> None:
    header = (shared.OBJECTS.parents[3] / "bpf" / "trainobs.h").read_text()
    names = re.findall(r"\bTOBS_EVENT_(\w+),", header)  # no type of a map, so not in the BTF
    assert names == [event.name for event in Event]
    for name, dtype in (("tobs_seen", SEEN), ("tobs_seen_step", SEEN_STEP)):
        fields = dtype.fields or {}
        expected = {key: (at, kind.itemsize) for key, (kind, at) in fields.items()}
        assert seen_btf.layout(name) == expected
    assert seen_btf.map_value_size("seen_process") == SEEN.itemsize
    assert seen_btf.layout("tobs_calls") == {"count": (0, 8), "calls": (8, 8 * CALLS)}
    assert seen_btf.map_value_size("seen_calls") == SEEN_CALLS.itemsize
    assert syscall_table.SIZE == CALL_NUMBERS


@pytest.fixture(scope="module", params=["with the kfunc", "without"])
def btf(request: pytest.FixtureRequest) -> Btf:
    with_it, without = shared.object_files({shared.KFUNC}, (6, 18))
    return Btf(with_it if request.param == "with the kfunc" else without)


@pytest.mark.parametrize(
    ("name", "prefix", "python"),
    [
        ("tobs_op", "TOBS_", Op),
        ("tobs_class", "TOBS_", FileClass),
        ("tobs_role", "TOBS_", Role),
        ("tobs_phase", "TOBS_PHASE_", Phase),
        ("tobs_file_op", "TOBS_FILE_", FileOp),
    ],
)
def test_enumerations_agree(btf: Btf, name: str, prefix: str, python: type[IntEnum]) -> None:
    ours = {prefix + member.name: member.value for member in python}
    lengths = {
        "TOBS_FILE_OPS": len(FileOp),
        "TOBS_OPS": len(Op),
        "TOBS_CLASSES": len(FileClass),
        "TOBS_ROLES": len(Role),
    }
    theirs = btf.enumerators(name)
    assert theirs == ours | {key: lengths[key] for key in theirs.keys() & lengths.keys()}


def test_no_map_has_bytes_of_no_member(btf: Btf) -> None:
    """Nothing sets these, and before Linux 6.3 a program may not put them into a map."""
    found = {
        name: [btf.holes(kind) for kind in of.values()] for name, of in btf.map_types().items()
    }
    assert {"askers", "requests", "tasks"} <= found.keys()
    assert not {name: holes for name, holes in found.items() if any(holes)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("tobs_cell", CELL),
        ("tobs_losses", LOSSES),
        ("tobs_batch", BATCH),
        ("tobs_counts", COUNTS),
        ("tobs_access", ACCESS),
        ("tobs_total_key", TOTAL_KEY),
        ("tobs_total", TOTAL),
        ("tobs_file_key", FILE_KEY),
        ("tobs_file", FILE),
        ("tobs_peer_key", PEER_KEY),
        ("tobs_peer", PEER),
        ("chunk_key", file_counts.CHUNK_KEY),
        ("chunk", file_counts.CHUNK),
        ("request_start", block_requests.REQUEST),
    ],
)
def test_structures_agree(btf: Btf, name: str, dtype: np.dtype) -> None:
    fields = dtype.fields or {}
    assert btf.layout(name) == {key: (at, kind.itemsize) for key, (kind, at) in fields.items()}


def test_what_programs_of_a_user_s_count_is_laid_out_alike() -> None:
    support = Btf(own_programs._support())
    assert support.layout("tobs_own_cell") == {"count": (0, 8), "value": (8, 8)}
    assert support.named(STRUCT, "tobs_own_row").size_or_type * RING == own_programs._TABLE_BYTES
    assert OWN_CELL.itemsize * OWN_COUNTERS * len(Role) * RING == own_programs._TABLE_BYTES


def test_a_task_is_the_same_to_ours_and_to_what_a_user_s_program_is_linked_to(btf: Btf) -> None:
    assert Btf(own_programs._support()).layout("task_state") == btf.layout("task_state")


def test_the_arguments_of_iterators_are_words_in_this_order(btf: Btf) -> None:
    words = ["slots", "slot", "tgid", "tid", "root_fd", "root_class", "found", "client_fd"]
    words.append("limits_hidden")
    assert btf.layout("tobs_control") == {word: (4 * i, 4) for i, word in enumerate(words)}
    assert 4 * len(words) == shared._CONTROL.size


def test_what_python_sets_for_a_session_are_the_first_words(btf: Btf) -> None:
    words = ["open", "guarded", "class_epoch", "infer_data"]
    layout = btf.layout("tobs_settings")
    assert list(layout.items())[:4] == [(word, (4 * i, 4)) for i, word in enumerate(words)]
    assert list(layout.items())[-1] == ("clock_ahead_ns", (shared._SETTINGS.size - 8, 8))
    assert btf.named(STRUCT, "tobs_settings").size_or_type == shared._SETTINGS.size


def test_the_step_word_begins_a_cache_line(btf: Btf) -> None:
    assert btf.layout("tobs_clock") == {"word": (0, 8), "epoch": (8, 8), "padding": (16, 48)}
    assert EPOCH == 1


def test_a_system_call_is_five_bytes(btf: Btf) -> None:
    assert btf.layout("tobs_syscall") == {
        "op_plus_one": (0, 1),
        "fd_arg": (1, 1),
        "source_arg": (2, 1),
        "offset_arg": (3, 1),
        "storage": (4, 1),
    }


def test_the_facts_of_the_machine_are_as_the_programs_read_them(btf: Btf) -> None:
    table = 5 * syscall_table.SIZE
    assert btf.layout("tobs_machine") == {
        "syscalls": (0, table),
        "page_shift": (table, 4),
    }
    facts = shared.machine_facts()
    assert btf.size(btf.named(VARIABLE, "machine").size_or_type) == len(facts)
    assert 1 << facts[table] == mmap.PAGESIZE


@pytest.mark.parametrize("name", KINDS)
def test_maps_of_a_session_are_made_as_the_programs_expect_them(btf: Btf, name: str) -> None:
    assert btf.map_numbers(name)["max_entries"] == SLOTS
    expected, kind = btf.inner_numbers(name), KINDS[name]
    assert expected["type"] == kind.type
    assert expected["key_size"] == kind.key_bytes
    assert expected["value_size"] == kind.value_bytes
    assert expected.get("map_flags", 0) == kind.flags
    if kind.type == 2:  # BPF_MAP_TYPE_ARRAY: of a hash, a session may have a larger one
        assert expected["max_entries"] == kind.entries


@pytest.mark.parametrize(
    ("name", "entries", "kind"),
    [("settings", SLOTS, shared._SETTINGS), ("control", 1, shared._CONTROL)],
)
def test_maps_are_as_large_as_python_maps_them(
    btf: Btf, name: str, entries: int, kind: Struct
) -> None:
    numbers = btf.map_numbers(name)
    assert numbers["max_entries"] == entries
    assert btf.map_value_size(name) == kind.size
    assert numbers["map_flags"] == 1 << 10  # BPF_F_MMAPABLE
