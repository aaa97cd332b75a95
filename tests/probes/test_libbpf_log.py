"""What libbpf says goes to the thread that it says it to."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainobs.core.errors import ProbeError
from trainobs.probes.libbpf import open_library
from trainobs.probes.libbpf_log import captured_log


@pytest.fixture(scope="module")
def library():
    try:
        return open_library()
    except ProbeError:
        pytest.skip("no libbpf")


@pytest.fixture
def threads() -> Iterator[list[ThreadPoolExecutor]]:
    found = [ThreadPoolExecutor(1) for _ in range(3)]
    yield found
    for thread in found:
        thread.shutdown()


def fail_to_open(library, name):
    """Of which libbpf warns, with the name."""
    assert not library.bpf_object__open_file(os.fsencode(f"/nowhere/{name}"), None)


def test_each_of_several_threads_hears_what_is_said_to_it(library, threads):
    """And the printer of one that has ended is called by nobody: that ended the process."""
    before = library.libbpf_set_print(None)
    library.libbpf_set_print(before)
    captures = [thread.submit(captured_log, library).result() for thread in threads]
    first, second, third = (
        thread.submit(capture.__enter__).result()
        for thread, capture in zip(threads, captures, strict=True)
    )
    for name, thread, capture in zip(("a", "b", "c"), threads, captures, strict=True):
        thread.submit(fail_to_open, library, f"{name}.o").result()
        thread.submit(capture.__exit__, None, None, None).result()
        gc.collect()
    for name, said in zip(("a", "b", "c"), (first, second, third), strict=True):
        assert [f"/nowhere/{name}.o" in line for line in said] == [True]
    after = library.libbpf_set_print(None)
    library.libbpf_set_print(after)
    assert after == before


def test_what_is_said_to_no_capturing_thread_is_left_out(library, threads):
    with captured_log(library) as said:
        threads[0].submit(fail_to_open, library, "other.o").result()
        fail_to_open(library, "own.o")
    assert [line for line in said if "other.o" in line] == []
    assert len(said) == 1


def test_a_child_that_was_forked_while_another_thread_captures_can_capture(library, threads):
    capture = captured_log(library)
    threads[0].submit(capture.__enter__).result()
    child = os.fork()
    if not child:
        try:
            with captured_log(library) as said:
                fail_to_open(library, "child.o")
            os._exit(len(said))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    threads[0].submit(capture.__exit__, None, None, None).result()
