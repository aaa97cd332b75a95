"""What is done in another thread is done, whatever becomes of that thread."""

from __future__ import annotations

import _thread
import threading

import pytest

from trainobs.core import another_thread
from trainobs.core.another_thread import in_another_thread


def done_by() -> list[int]:
    found: list[int] = []
    in_another_thread(lambda: found.append(threading.get_ident()))
    return found


def test_it_is_done_in_another_thread_before_the_call_returns():
    (other,) = done_by()
    assert other != threading.get_ident()


@pytest.mark.parametrize("ends", ["refused", "without memory"])
def test_where_no_thread_begins_it_is_done_here(monkeypatch, ends):
    def start(run, arguments):
        if ends == "refused":
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(another_thread, "PATIENCE_S", 0.01)
    monkeypatch.setattr(_thread, "start_new_thread", start)
    assert done_by() == [threading.get_ident()]
