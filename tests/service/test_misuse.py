"""Garbage, floods and clients that do not play along hurt nobody else."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kernel.processes import join
from tests.service.service import (
    SOMEBODY,
    Observed,
    Raw,
    Service,
    Turns,
    as_user,
    refusal_of,
    serves,
)
from tests.session.jobs import wait_for
from trainobs.core.errors import ProbeError
from trainobs.probes import protocol
from trainobs.probes.service_backend import Busy, ServiceBackend, connect, enter
from trainobs.service.connection import FIRST_QUESTION_S, REST_S
from trainobs.service.server import QUESTION_S, QUESTIONS
from trainobs.service.sessions import REGAIN_S
from trainobs.service.user_log import AT_ONCE

pytestmark = pytest.mark.needs_bpf


GARBAGE = {
    "nothing": b"",
    "a zero": b"\0",
    "half a question": b'{"version":2,"ask":"regis',
    "no object": b"[1]",
    "a number": b"7",
    "a deep one": b"[" * 1000,
    "not UTF-8": b'{"version":2,"ask":"\xff\xfe"}',
    "too long": b" " * 5000,
    "no version": b'{"ask":"hello"}',
    "another version": b'{"version":1,"ask":"hello"}',
    "an unknown question": b'{"version":2,"ask":"__init__"}',
    "no thread": b'{"version":2,"ask":"register"}',
    "a thread by name": b'{"version":2,"ask":"register","tid":"1"}',
    "a negative thread": b'{"version":2,"ask":"register","tid":-1}',
    "a huge thread": b'{"version":2,"ask":"register","tid":%d}' % 10**40,
    "a clock by name": b'{"version":2,"ask":"register","tid":1,"ahead_ns":"1"}',
    "a clock of another age": b'{"version":2,"ask":"register","tid":1,"ahead_ns":%d}' % -(2**63),
    "a thread that is none": b'{"version":2,"ask":"register","tid":NaN}',
    "a root of nobody": b'{"version":2,"ask":"root","file_class":1}',
    "a leave of nobody": b'{"version":2,"ask":"leave","tid":1}',
    "an end of nothing": b'{"version":2,"ask":"end"}',
}


def test_garbage_is_refused_and_hurts_nobody(service: Service) -> None:
    assert protocol.VERSION == 2, "the questions above are of another version"

    def work() -> None:
        for name, data in GARBAGE.items():
            raw = Raw(service.path)
            raw.say(data)
            answer = raw.answer()
            assert answer is None or refusal_of(answer), name
            assert raw.answer() is None, f"it did not hang up after {name}"
            raw.close()

    join(as_user(work))
    assert service.process.poll() is None
    assert not service.said("Traceback")
    assert service.sessions() == 0


def test_noise_and_unwanted_descriptors_are_refused_and_leak_none(service: Service) -> None:
    held = f"/proc/{service.process.pid}/fd"
    before = len(os.listdir(held))
    noise = random.Random(7)

    def work() -> None:
        for _ in range(300):
            raw = Raw(service.path)
            with suppress(OSError):
                raw.say(noise.randbytes(noise.randrange(1, 1500)), [0] * noise.randrange(4))
                assert refusal_of(raw.answer())
            raw.close()

    join(as_user(work))
    wait_for(lambda: len(os.listdir(held)) <= before)
    assert not service.said("Traceback")
    serves(service)


def test_garbage_in_a_session_ends_that_session_alone(service: Service) -> None:
    def work() -> None:
        observed = Observed(service.path)
        raw = Raw(service.path)
        assert "session already" in refusal_of(raw.ask("register", tid=os.getpid()))
        served = observed.kernel
        assert isinstance(served, ServiceBackend)
        served._socket.send(b"}{")
        wait_for(lambda: served.gone_since_ns() is not None)
        assert served.losses()["service"] == 1
        observed.stop()

    join(as_user(work))
    service.is_free_again()
    serves(service)


def registered_until(path: Path, ready: Turns, over: Turns) -> Callable[[], None]:
    def work() -> None:
        observed = Observed(path)
        ready.pass_on()
        over.wait()
        observed.stop()

    return work


def test_a_flood_of_registrations_takes_no_more_than_the_users_share(
    small_service: Service,
) -> None:
    service = small_service
    with Turns() as ready, Turns() as flooded, Turns() as over:
        children = [as_user(registered_until(service.path, ready, over)) for _ in range(2)]
        ready.wait()
        ready.wait()

        def flood() -> None:
            refused = 0
            while True:
                with suppress(OSError, ProbeError):
                    raw = Raw(service.path)
                    refused += "sessions" in refusal_of(raw.ask("register", tid=os.getpid()))
                    raw.close()
                if refused == 20:
                    flooded.pass_on()

        flooding = [as_user(flood) for _ in range(2)]
        flooded.wait()
        serves(service, SOMEBODY)
        for child in flooding:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for _ in children:
            over.pass_on()
        for child in children:
            join(child)
    service.is_free_again()


def test_beginning_and_ending_sessions_without_end_is_slowed_down(small_service: Service) -> None:
    def work() -> None:
        begun = 0
        refusal = ""
        began = time.monotonic()
        while begun < 100 and not refusal:
            try:
                ServiceBackend(small_service.path).stop()
                begun += 1
            except ProbeError as error:
                refusal = error.found
        assert "faster than is allowed" in refusal
        assert 4 <= begun < 12 + (time.monotonic() - began) / REGAIN_S

    join(as_user(work))
    serves(small_service, SOMEBODY)


def test_idle_connections_are_few_and_end(small_service: Service) -> None:
    def work() -> None:
        begin = time.monotonic()
        idle = [Raw(small_service.path) for _ in range(20)]
        words = [raw.answer() for raw in idle[6:]]
        assert all("connections" in refusal_of(answer) for answer in words)
        assert idle[0].answer() is None
        assert time.monotonic() - begin > 0.9 * FIRST_QUESTION_S

    child = as_user(work)
    serves(small_service, SOMEBODY)
    join(child)


def test_one_who_counts_in_another_way_is_refused(service: Service) -> None:
    def work() -> None:
        raw = Raw(service.path)
        answer = raw.ask("register", tid=os.getpid(), layout=protocol.LAYOUT + 1)
        assert "counts in another way" in refusal_of(answer)

    join(as_user(work))


def test_one_who_asks_without_end_holds_up_nobody(service: Service) -> None:
    with Turns() as asking:

        def work() -> None:
            raw = Raw(service.path)
            assert raw.ask("register", tid=os.getpid(), count=2)
            asking.pass_on()
            while raw.ask("adopt", tid=os.getpid()):
                pass

        children = [as_user(work) for _ in range(4)]
        for _ in children:
            asking.wait()
        serves(service, SOMEBODY)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    service.is_free_again()


def test_who_asks_small_things_without_end_gets_slow_answers(service: Service) -> None:
    def work() -> None:
        raw, begin, asked = Raw(service.path), time.monotonic(), QUESTIONS + 150
        for _ in range(asked):
            assert raw.ask("hello")
        took = time.monotonic() - begin
        assert asked <= QUESTIONS + took / QUESTION_S + took / REST_S + 1

    join(as_user(work))
    serves(service, SOMEBODY)


def test_one_who_does_not_listen_holds_up_nobody(service: Service) -> None:
    def work() -> None:
        raw = Raw(service.path)
        assert raw.ask("register", tid=os.getpid(), count=2)
        raw.socket.settimeout(0.2)
        with suppress(OSError):
            while True:
                raw.say(
                    json.dumps(
                        {"version": protocol.VERSION, "ask": "adopt", "tid": os.getpid()}
                    ).encode()
                )
        service_answers.pass_on()
        over.wait()

    with Turns() as service_answers, Turns() as over:
        child = as_user(work)
        service_answers.wait()
        serves(service, SOMEBODY)
        over.pass_on()
        join(child)
    service.is_free_again()


def test_who_keeps_the_memory_of_ended_sessions_gets_no_more_of_it(small_service: Service) -> None:
    service = small_service

    def begun_and_ended() -> list[int]:
        raw = Raw(service.path)
        answer = raw.ask("register", tid=os.getpid(), count=2)
        assert answer
        assert raw.ask("end")
        raw.close()
        return answer[1]

    def work() -> None:
        kept = [fd for _ in range(2) for fd in begun_and_ended()]
        mapped = mmap.mmap(kept[1], mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(kept.pop(1))
        raw = Raw(service.path)
        refusal = refusal_of(raw.ask("register", tid=os.getpid()))
        assert "keeps the memory of 2 sessions that are over" in refusal
        full.pass_on()
        served.wait()
        mapped.close()
        Observed(service.path).stop()

    with Turns() as full, Turns() as served:
        child = as_user(work)
        full.wait()
        serves(service, SOMEBODY)
        served.pass_on()
        join(child)


def test_a_hundred_clients_at_one_moment_are_all_served(service: Service) -> None:
    """Of one user, who may have 20 connections."""
    with Turns() as go:

        def work() -> None:
            go.wait()
            connection, answer, _ = enter(service.path, "hello")
            assert answer["ok"]
            connection.close()

        children = [as_user(work) for _ in range(100)]
        go.pass_on(100)
        for child in children:
            join(child)


def test_a_full_queue_is_waited_for(open_place: Path) -> None:
    """A listener that is slow to accept, and has room for one."""
    path = open_place / "slow.sock"
    with protocol.new_socket() as listener, protocol.new_socket() as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(Busy):
            connect(path)

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, suppress(OSError, EOFError):
                    protocol.receive(connection, protocol.QUESTION_BYTES, 0)
                    protocol.send(connection, {"ok": True}, ())

        thread = threading.Thread(target=serve)
        timer = threading.Timer(0.1, first.close)
        thread.start()
        timer.start()
        connection, answer, _ = enter(path, "hello")
        connection.close()
        assert answer == {"ok": True}
        thread.join()
        timer.join()


def test_lines_that_a_user_causes_are_few_and_the_others_are_counted(service: Service) -> None:
    tries = 120

    def work() -> None:
        for _ in range(tries):
            raw = Raw(service.path)
            raw.say(b"{")
            raw.answer()
            raw.close()

    def lines(words: str) -> list[str]:
        return [line for line in list(service.log) if words in line]

    join(as_user(work))
    assert len(lines("refused process")) < AT_ONCE + 20
    wait_for(lambda: lines("left out"))
    left_out = sum(int(line.split()[3]) for line in lines("left out"))
    assert left_out + len(lines("refused process")) == tries
    serves(service, SOMEBODY)
