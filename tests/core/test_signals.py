"""What the handler of a signal raises inside our code is for the training."""

from __future__ import annotations

import functools
import gc
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from traceback import format_exception

import pytest
import torch
from torch import nn

from trainobs import observe
from trainobs.core.signals import let_signals_through
from trainobs.embeddings.hooks import SiteHook


class Raises:
    """Handlers of each kind."""

    def __call__(self, *_: object) -> None:
        raise RuntimeError("a signal came")

    def method(self, *_: object) -> None:
        raise RuntimeError("a signal came")


def function(*_: object) -> None:
    raise RuntimeError("a signal came")


@pytest.fixture
def handled(request: pytest.FixtureRequest):
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


KINDS = [function, functools.partial(function, 1), Raises(), Raises().method]
each_kind = pytest.mark.parametrize("handled", KINDS, indirect=True, ids=range(4))


def fail() -> None:
    raise RuntimeError("a fault")


def guarded(action: Callable[[], object]) -> None:
    try:
        action()
    except RuntimeError:
        let_signals_through()


@each_kind
@pytest.mark.usefixtures("handled")
def test_what_a_handler_raised_goes_on_and_a_fault_does_not() -> None:
    guarded(fail)
    with pytest.raises(RuntimeError, match="a signal came"):
        guarded(lambda: signal.raise_signal(signal.SIGUSR1))


@pytest.mark.parametrize("handled", [function], indirect=True)
@pytest.mark.usefixtures("handled")
def test_what_goes_on_is_not_kept_with_all_that_its_frames_know() -> None:
    class Thing:
        pass

    def interrupted() -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        guarded(lambda: signal.raise_signal(signal.SIGUSR1))

    seen: list[weakref.ref[Thing]] = []
    gc.disable()
    try:
        interrupted()
    except RuntimeError:
        pass
    finally:
        gc.enable()
    assert seen[0]() is None


@pytest.mark.parametrize("handled", [function], indirect=True)
@pytest.mark.usefixtures("handled")
def test_a_signal_in_a_mark_reaches_the_loop_and_ends_no_run(tmp_path, caplog) -> None:
    with observe(run_dir=tmp_path / "run", probes="off", quiet=True) as obs:
        clock = obs._session.clock
        enter, clock.enter = clock.enter, lambda _: signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(RuntimeError, match="a signal came"), obs.phase("forward"):
            pass
        clock.enter = enter
        assert obs._session is not None
        watch = obs._watch
        with pytest.raises(RuntimeError, match="a signal came"):
            watch.safely(signal.raise_signal, signal.SIGUSR1)
        with obs.step():
            pass
    assert not caplog.records


def ring(*_: object) -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("handled", [function], indirect=True)
@pytest.mark.usefixtures("handled")
def test_a_signal_while_a_fault_ends_the_run_reaches_the_loop(tmp_path, monkeypatch) -> None:
    with observe(run_dir=tmp_path / "run", probes="off", quiet=True) as obs:
        watch = obs._watch
        monkeypatch.setattr(watch, "close", ring)
        monkeypatch.setattr(obs._session.clock, "enter", lambda _: fail())
        with pytest.raises(RuntimeError, match="a signal came"), obs.phase("forward"):
            pass
    monkeypatch.undo()
    watch.close()


@pytest.mark.parametrize("handled", [function], indirect=True)
@pytest.mark.usefixtures("handled")
def test_a_signal_as_a_failed_training_ends_its_run_hides_no_fault(tmp_path) -> None:
    def train() -> None:
        with observe(run_dir=tmp_path / "run", probes="off", quiet=True) as obs:
            observer = obs._session._observer
            stop, observer.stop = observer.stop, lambda *what: (stop(*what), ring())
            raise ValueError("the fault of the training")

    with pytest.raises(RuntimeError, match="a signal came") as raised:
        train()
    assert "the fault of the training" in "".join(format_exception(raised.value))


@pytest.mark.parametrize("handled", [function], indirect=True)
@pytest.mark.usefixtures("handled")
def test_a_signal_in_the_hook_of_a_table_reaches_the_loop(tmp_path, monkeypatch, caplog) -> None:
    bag = nn.EmbeddingBag(10, 4)
    monkeypatch.setattr(SiteHook, "_note", ring)
    options = {"probes": "off", "quiet": True, "model": bag, "embedding_every": 1}
    with observe(run_dir=tmp_path / "run", **options):
        with pytest.raises(RuntimeError, match="a signal came"):
            bag(torch.tensor([[1, 2]]))
        assert not caplog.records


OBSERVED = """
from trainobs import observe
obs = observe(run_dir=sys.argv[1], probes="off")
"""
WITH_A_SESSION = """
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings
kept = open_session(Settings.parse("off", quiet=True), Path(sys.argv[1]), log_every_n_steps=50)
"""
INTERRUPTED = """
time.sleep(0.3)  # what is imported last is so at the exit
os.kill(os.getpid(), signal.SIGINT)
time.sleep(10)
"""


@pytest.mark.parametrize("begin", ["", OBSERVED, WITH_A_SESSION], ids=["plain", "loop", "session"])
def test_ctrl_c_ends_the_process_as_it_does_unobserved(tmp_path, begin):
    """A shell's loop goes on after status 1, and ends after SIGINT."""
    imports = "import os, signal, sys, time\nfrom pathlib import Path\n"
    code = imports + begin + INTERRUPTED
    words = [sys.executable, "-c", code, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.count("KeyboardInterrupt") == 1


def test_a_ctrl_c_at_a_prompt_of_the_program_is_not_its_end(tmp_path):
    prompt = 'code.InteractiveInterpreter().runsource("raise KeyboardInterrupt")\n'
    words = [sys.executable, "-c", "import code, sys\n" + OBSERVED + prompt, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stderr.count("KeyboardInterrupt") == 1
    assert done.returncode == 0
