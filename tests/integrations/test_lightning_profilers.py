"""The user's profiler: it misses nothing while it is shared, and is put back however fit ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.integrations.models import Lightning, loader, step_numbers
from trainobs import ObsCallback
from trainobs.runlog.reader import RunLog

PROFILERS = [None, "simple", "advanced"]


@pytest.fixture
def keep_interrupts() -> Iterator[None]:
    """Lightning ignores Ctrl-C after the first one, for the rest of the process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def at_batch_3(error: type[BaseException]) -> Callable[[int], None]:
    def fail(batch_idx: int) -> None:
        if batch_idx == 3:
            raise error("the user's own")

    return fail


def actions(profiler: Any) -> dict[str, int]:
    return {name: len(times) for name, times in profiler.recorded_durations.items()}


@pytest.mark.parametrize("profiler", PROFILERS)
def test_the_profiler_is_put_back_after_a_fit(lightning, profiler):
    trainer = lightning.trainer(ObsCallback(), profiler=profiler)
    before = trainer.profiler
    trainer.fit(lightning.module(), loader())
    assert trainer.profiler is before


@pytest.mark.parametrize("profiler", PROFILERS)
def test_the_profiler_is_put_back_after_an_exception_which_arrives_as_it_is(lightning, profiler):
    callback = ObsCallback()
    trainer = lightning.trainer(callback, profiler=profiler)
    before, module = trainer.profiler, lightning.module(at_batch_3(LookupError))
    with pytest.raises(LookupError, match="^the user's own$") as caught:
        trainer.fit(module, loader())
    assert trainer.profiler is before
    assert caught.value.__context__ is None
    assert step_numbers(callback.run_dir) == [0, 1, 2, 3]
    assert RunLog.open(callback.run_dir).info["summary"]["outcome"] == "exception: LookupError"


@pytest.mark.parametrize("profiler", PROFILERS)
def test_the_profiler_is_put_back_after_ctrl_c(lightning, profiler, keep_interrupts):
    callback = ObsCallback()
    trainer = lightning.trainer(callback, profiler=profiler)
    before, module = trainer.profiler, lightning.module(at_batch_3(KeyboardInterrupt))
    with pytest.raises(SystemExit):
        trainer.fit(module, loader())
    assert trainer.profiler is before
    outcome = RunLog.open(callback.run_dir).info["summary"]["outcome"]
    assert outcome == "exception: KeyboardInterrupt"


def test_the_profiler_is_put_back_after_sigterm(lightning):
    def terminate(batch_idx: int) -> None:
        if batch_idx == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    callback, handler = ObsCallback(), signal.getsignal(signal.SIGTERM)
    trainer = lightning.trainer(callback, profiler="simple")
    before, module = trainer.profiler, lightning.module(terminate)
    with pytest.raises(SystemExit):
        trainer.fit(module, loader())
    assert trainer.profiler is before
    assert signal.getsignal(signal.SIGTERM) is handler
    assert RunLog.open(callback.run_dir).info["summary"]["outcome"] == "exception: SIGTERMException"
    assert step_numbers(callback.run_dir) == [0, 1, 2, 3]


def test_an_exception_in_validation_ends_the_run_like_any_other(lightning):
    class Failing(type(lightning.module())):
        def validation_step(self, batch: object, batch_idx: int) -> None:
            raise LookupError("the user's own")

    callback = ObsCallback()
    trainer = lightning.trainer(callback)
    before = trainer.profiler
    with pytest.raises(LookupError):
        trainer.fit(Failing(), loader(), loader())
    assert trainer.profiler is before
    assert step_numbers(callback.run_dir) == list(range(8))


def test_a_trainer_that_failed_can_fit_again(lightning):
    callback = ObsCallback()
    trainer = lightning.trainer(callback)
    with pytest.raises(LookupError):
        trainer.fit(lightning.module(at_batch_3(LookupError)), loader())
    trainer = lightning.trainer(callback)
    trainer.fit(lightning.module(), loader())
    assert step_numbers(callback.run_dir) == list(range(8))


def test_the_report_of_the_users_profiler_has_all_its_actions(lightning):
    counts = []
    for callback in (None, ObsCallback()):
        trainer = lightning.fit(callback, profiler="simple", val=loader(4), max_epochs=2)
        counts.append(actions(trainer.profiler))
    plain, observed = counts
    mine = {name for name in observed if "ObsCallback" in name}
    assert mine
    # setup began before the profiler was shared and must have come to its end all the same
    assert observed["[Callback]ObsCallback.setup"] == 1
    assert {name: count for name, count in observed.items() if name not in mine} == plain


def test_the_shared_profiler_passes_for_the_users_own(lightning: Lightning):
    seen: list[Any] = []

    class Looking(lightning.pl.Callback):
        def on_train_batch_end(self, trainer: Any, *arguments: object) -> None:
            trainer.profiler.mark = len(seen)
            seen.append(trainer.profiler)

    profiler = lightning.pl.profilers.SimpleProfiler(filename="report")
    lightning.fit([Looking(), ObsCallback()], profiler=profiler)
    assert len(seen) == 8
    assert seen[0] is not profiler
    assert isinstance(seen[0], lightning.pl.profilers.SimpleProfiler)
    assert seen[0].filename == "report"
    assert profiler.mark == 7


def test_an_action_of_the_users_own_is_forwarded(lightning):
    class Profiling(type(lightning.module())):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("mine"):
                return super().training_step(batch, batch_idx)

    trainer = lightning.trainer(ObsCallback(), profiler="simple")
    trainer.fit(Profiling(), loader())
    assert actions(trainer.profiler)["mine"] == 8


def test_a_profiler_derived_from_the_idle_one_hears_of_every_action(lightning: Lightning):
    class Hearing(lightning.pl.profilers.PassThroughProfiler):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[str] = []

        def start(self, action_name: str) -> None:
            self.heard.append(action_name)

    plain, observed = Hearing(), Hearing()
    lightning.fit(None, profiler=plain)
    lightning.fit(ObsCallback(), profiler=observed)
    assert [action for action in observed.heard if "ObsCallback" not in action] == plain.heard


@pytest.mark.parametrize("name", ["profile", "start", "stop"])
def test_an_idle_profiler_that_is_patched_hears_of_every_action_from_then_on(
    lightning: Lightning, name: str
):
    heard: list[str] = []

    def hear(action: str) -> Any:
        heard.append(action)
        return nullcontext(action)

    class Patching(lightning.pl.Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 3:
                setattr(trainer.profiler, name, hear)

    callback = ObsCallback()
    lightning.fit([Patching(), callback], max_epochs=1)
    assert sum(action.endswith(".training_step") for action in heard) == 4
    assert step_numbers(callback.run_dir) == list(range(8))


def test_the_context_of_an_action_gives_its_name_and_lets_exceptions_through(lightning: Lightning):
    class Profiling(type(lightning.module())):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for action in ("mine", "mine.backward"):
                with (
                    pytest.raises(LookupError, match="^the user's own$"),
                    self.trainer.profiler.profile(action) as name,
                ):
                    raise LookupError("the user's own")
                assert name == action
            return super().training_step(batch, batch_idx)

    callback = ObsCallback()
    lightning.trainer(callback).fit(Profiling(), loader())
    assert step_numbers(callback.run_dir) == list(range(8))


def test_an_idle_profiler_is_not_asked_for_a_context_each_time(lightning: Lightning):
    same: list[bool] = []

    class Looking(lightning.pl.Callback):
        def on_train_batch_end(self, trainer: Any, *arguments: object) -> None:
            same.append(trainer.profiler.profile("mine") is trainer.profiler.profile("mine"))

    lightning.fit([Looking(), ObsCallback()])
    assert same == [True] * 8
    same.clear()
    lightning.fit([Looking(), ObsCallback()], profiler="simple")
    assert same == [False] * 8
