"""Descriptors of processes."""

from __future__ import annotations

import os
import select
import subprocess

import pytest

from trainobs.core.pidfd import pidfd_open


def test_it_tells_of_the_end_of_a_process_where_python_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen(["sleep", "60"])
    descriptor = pidfd_open(process.pid)
    try:
        assert not os.get_inheritable(descriptor)
        assert not select.select([descriptor], [], [], 0)[0]
        process.kill()
        assert select.select([descriptor], [], [], 10)[0]
    finally:
        os.close(descriptor)
        process.wait()
    with pytest.raises(ProcessLookupError):
        pidfd_open(process.pid)
