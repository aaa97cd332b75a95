"""A process that may open few files: the probes say that they cannot run, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainobs.probes.libbpf import open_library
from trainobs.probes.loader import error_text

pytestmark = pytest.mark.needs_bpf

JOB = """
import os, resource
from trainobs.core.errors import ProbeError
from trainobs.probes.local_backend import LocalBackend
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(6, 300, 12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        LocalBackend().stop()
        print("on")
        break
    except ProbeError as error:
        print(error.cause.name, "|", error.failed, "|", error.found)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    assert len(os.listdir("/proc/self/fd")) < 8
"""


def test_too_few_descriptors_are_a_refusal_and_print_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[-1] == "on"
    refused = [line for line in lines if line != "on"]
    assert all(line.startswith("REFUSED") for line in refused)
    assert any("the probes need" in line for line in refused)


def test_libbpf_has_words_for_its_own_errors() -> None:
    library = open_library()
    assert "4001" not in error_text(library, 4001)
    assert error_text(library, 4001)
    assert error_text(library, 24) == "Too many open files"
