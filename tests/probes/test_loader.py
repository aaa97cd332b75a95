"""What the loader makes of libbpf's log."""

from __future__ import annotations

import errno

import pytest

from trainobs.probes.loader import LibbpfLoader, _telling, refusal

LINUX_6 = """\
; return task->call; @ syscalls.bpf.h:20
14: (79) r1 = *(u64 *)(r8 +8)
R8 invalid mem access 'scalar'
processed 15 insns (limit 1000000) max_states_per_insn 0 total_states 1 peak_states 1 mark_read 1
-- END PROG LOAD LOG --"""

LINUX_7_3 = """\
322: (85) call bpf_probe_read#4
program of this type cannot use helper bpf_probe_read#4

Verification failed: Policy: Operation is not allowed

Reason:
  The helper bpf_probe_read#4 is not allowed: this program type does not allow the helper.

Suggestion:
  Use a helper allowed for this program type, or move the logic to a compatible program type.

processed 241 insns (limit 1000000) max_states_per_insn 0 total_states 13 peak_states 13 mark_read 0
-- END PROG LOAD LOG --"""

LINUX_5_15 = """\
The sequence of 8193 jumps is too complex.
processed 147903 insns (limit 1000000) max_states_per_insn 4 total_states 8900 peak_states 8900
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (LINUX_6, "R8 invalid mem access 'scalar'"),
        (LINUX_7_3, "program of this type cannot use helper bpf_probe_read#4"),
        (LINUX_5_15, "The sequence of 8193 jumps is too complex."),
        ("cut off in the middle of a li", "cut off in the middle of a li"),
        ("", ""),
    ],
)
def test_the_line_that_tells_most_is_found_in_the_log_of_each_kernel(log: str, line: str) -> None:
    assert _telling(log) == line


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("R8 invalid mem access 'scalar'\nprocessed 15 insns (limit", "R8 invalid mem access"),
        ("14: (79) r1 = *(u64", "more than the verifier can look through"),
    ],
)
def test_a_log_that_is_cut_tells_no_last_words(end: str, told: str) -> None:
    """Where a program is too long to verify, the log is too long as well."""
    log = [
        "libbpf: prog 'p': BPF program load failed: Argument list too long",
        f"libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\n13: (b7) r1 = 0\n{end}",
    ]
    assert told in refusal(log)


WITHOUT_JIT = [
    "libbpf: prog 'tobs_ra_wait_f': BPF program load failed: Cannot allocate memory",
    "libbpf: prog 'tobs_ra_wait_f': -- BEGIN PROG LOAD LOG --\n"
    "processed 0 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0\n"
    "-- END PROG LOAD LOG --",
    "libbpf: prog 'tobs_ra_wait_f': failed to load: -12",
]
"""What Linux 6.8 says that was built without CONFIG_BPF_JIT."""


def test_a_program_of_a_function_that_has_no_memory_is_left_out() -> None:
    loader = object.__new__(LibbpfLoader)
    name = "tobs_ra_wait_f"
    assert set(loader._culprits(errno.ENOMEM, WITHOUT_JIT, {name}, {name})) == {name}
    with pytest.raises(OSError, match="memory"):
        loader._culprits(errno.ENOMEM, WITHOUT_JIT, {name}, set())
    with pytest.raises(OSError, match="memory"):  # of a map, say
        loader._culprits(errno.ENOMEM, [], {name}, {name})
