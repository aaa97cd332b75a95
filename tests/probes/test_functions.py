"""Whether a machine lets programs attach to functions, and what that changes."""

from __future__ import annotations

import errno

import pytest

from tests.kernel_state import why_no_bpf
from trainobs.probes import functions, shared
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.programs import LIMIT


@pytest.mark.parametrize(
    ("of_functions", "of_tracepoints", "refuses"),
    [
        (errno.EPERM, errno.EINVAL, True),
        (errno.EINVAL, errno.EINVAL, False),
        (errno.EPERM, errno.EPERM, False),  # it may load nothing at all
        (0, 0, False),  # a machine whose system calls are not known
    ],
)
def test_functions_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch, of_functions: int, of_tracepoints: int, refuses: bool
) -> None:
    answers = {functions._FENTRY: of_functions, functions._TRACEPOINT: of_tracepoints}
    monkeypatch.setattr(functions, "_asked", answers.__getitem__)
    assert functions.refuses_functions() is refuses


@pytest.mark.needs_bpf
def test_the_kernel_looks_at_a_program_of_a_tracepoint() -> None:
    if reason := why_no_bpf():
        pytest.skip(reason)
    assert functions._asked(functions._TRACEPOINT) == errno.EINVAL
    assert functions._asked(functions._FENTRY) in (errno.EINVAL, errno.EPERM)


@pytest.mark.needs_bpf
def test_where_functions_are_refused_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_no_bpf():
        pytest.skip(reason)
    monkeypatch.setattr(shared, "refuses_functions", lambda: True)
    kernel = LocalBackend(["block"])
    try:
        assert kernel.status[LIMIT] == "on"
        assert kernel.attach_points()[LIMIT] == ""
        assert kernel._probes._loader.load_count == 1
        assert kernel._probes._limits_hidden
    finally:
        kernel.stop()
