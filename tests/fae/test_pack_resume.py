"""An interrupted epoch goes on with the very batches that it would have had."""

from __future__ import annotations

import copy
import io
import os
import random
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests import warm
from tests.fae.packing import (
    Inputs,
    Stream,
    collate,
    digest,
    make_input,
    profile,
    to_batch,
)
from trainobs.core.errors import FAEError, SettingError, TrainobsError
from trainobs.fae import FAEProfile, ShuffleScheduler, pack


class Augmented(Inputs):
    """Draws from all three sources of random numbers."""

    def __getitem__(self, index):
        factor = float(torch.rand(())) + random.random() + float(np.random.rand())
        one = super().__getitem__(index)
        weights = tuple(tuple(w * factor for w in bag) for bag in one.weights)
        return type(one)(one.number, one.bags, weights)


class Remembering(Stream):
    """Tells where it is, and goes on there."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.read = 0
        self.was_read = 0

    def __iter__(self):
        first, self.read = self.read, 0
        for i, one in enumerate(super().__iter__()):
            if i < first:
                continue
            self.read, self.was_read = i + 1, self.was_read + 1
            yield one
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


def shuffled(workers: int = 0, **more: Any) -> DataLoader[Any]:
    return DataLoader(
        Augmented(70), 4, shuffle=True, collate_fn=collate, num_workers=workers, **more
    )


def streamed(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Stream(70), 4, collate_fn=collate, num_workers=workers)


def remembered(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Remembering(70), 4, collate_fn=collate, num_workers=workers)


def listed() -> list[Any]:
    return [to_batch([make_input(4 * b + i) for i in range(4)]) for b in range(17)]


def drawn(workers: int = 0) -> DataLoader[Any]:
    return shuffled(workers, generator=torch.Generator().manual_seed(8))


def through_a_file(state: Any) -> Any:
    """As a checkpoint: only what torch takes for safe."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def all_and_states(packed, epochs: int) -> tuple[list[str], list[Any]]:
    """Digest of each batch, and the state after it."""
    digests, states = [], [packed.state_dict()]
    for _ in range(epochs):
        for batch in packed:
            digests.append(digest(batch))
            states.append(packed.state_dict())
    return digests, states


def the_rest(packed, state: Any, epochs: int = 2) -> list[str]:
    packed.load_state_dict(state)
    digests = []
    while packed.epoch < epochs:
        digests += [digest(batch) for batch in packed]
    return digests


@pytest.mark.parametrize("make", [shuffled, streamed, remembered, listed, drawn])
def test_a_run_goes_on_after_any_batch(make):
    of = profile(0.9)
    digests, states = all_and_states(pack(make(), of, window=4, seed=2), epochs=2)
    assert len(set(digests)) >= len(digests) // 2 > 16
    for taken in range(len(digests) + 1):
        rest = the_rest(pack(make(), of, window=4, seed=2), through_a_file(states[taken]))
        assert rest == digests[taken:]


@pytest.mark.parametrize(
    ("make", "workers", "workers_then"),
    [(shuffled, 2, 2), (shuffled, 2, 1), (streamed, 2, 2), (remembered, 2, 2)],
)
def test_a_run_with_workers_goes_on(make, workers, workers_then):
    of = profile(0.9)
    digests, states = all_and_states(pack(make(workers), of, window=4), epochs=2)
    for taken in (5, 12, 17, 18, 25):  # 17: one of two workers has ended
        rest = the_rest(pack(make(workers_then), of, window=4), through_a_file(states[taken]))
        assert rest == digests[taken:]


def test_workers_that_persist_learn_of_a_state():
    of = profile(0.9)
    packed = pack(shuffled(1, persistent_workers=True), of, window=4)
    digests, states = all_and_states(packed, epochs=1)
    assert the_rest(packed, states[7], epochs=1) == digests[7:]


def test_a_window_that_fills_no_batch_is_passed_over():
    sizes = [8, 8, 2, 3, 8, 8, 1, 1, 8, 8]
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    source = [
        to_batch([make_input(first + i) for i in range(size)])
        for first, size in zip(firsts, sizes, strict=True)
    ]

    def packed():
        return pack(source, profile(0.97), window=2, drop_last=True)

    digests, states = all_and_states(packed(), epochs=2)
    assert len(digests) == 12
    for taken in range(13):
        assert the_rest(packed(), through_a_file(states[taken])) == digests[taken:]


def test_an_epoch_ends_with_its_last_batch():
    packed = pack(shuffled(), profile(0.9), window=4)
    batches = iter(packed)
    epochs = []
    for _ in range(18):
        next(batches)
        epochs.append(packed.epoch)
    assert epochs == [0] * 17 + [1]
    assert next(batches, None) is None
    assert packed.epoch == 1


def test_an_interrupted_epoch_goes_on_when_it_is_named_and_another_begins():
    digests, states = all_and_states(pack(shuffled(), profile(0.9), window=4), epochs=2)
    packed = pack(shuffled(), profile(0.9), window=4)
    packed.load_state_dict(states[7])
    packed.sampler.set_epoch(0)  # as scripts do for a DistributedSampler
    assert [digest(batch) for batch in packed] == digests[7:18]
    packed.load_state_dict(states[7])
    packed.sampler.set_epoch(1)
    assert [digest(batch) for batch in packed] == digests[18:]
    next(iter(packed))
    packed.set_epoch(2)  # not interrupted, but left: it begins anew
    assert len(list(packed)) == 18


def test_a_data_set_that_remembers_is_not_read_again():
    of = profile(0.9)
    _, states = all_and_states(pack(remembered(), of, window=4), epochs=1)
    loader = remembered()
    the_rest(pack(loader, of, window=4), states[-2], epochs=1)
    assert loader.dataset.was_read <= 4 * 4  # one window of the five


def test_a_pipeline_that_is_ahead_is_known_of():
    of = profile(0.9)

    def packed():
        return pack(shuffled(), of, window=8, scheduler=ShuffleScheduler(rate=0.4))

    def run(loader, state: Any = None, ahead: int | None = None) -> tuple[list[str], Any]:
        """Digests of an epoch, with a test loss where one is due; and the state in its middle."""
        if state is not None:
            loader.load_state_dict(state)
        digests = []
        for batch in loader:
            digests.append(digest(batch))
            if loader.scheduler.is_due:
                loader.scheduler.report(1.0 + loader.scheduler.state_dict()["where"]["steps"])
            if ahead is not None and len(digests) == 9:
                return digests, loader.state_dict(ahead)
        return digests, None

    whole, _ = run(packed())
    for ahead in range(9):
        begun, state = run(packed(), ahead=ahead)
        rest, _ = run(packed(), through_a_file(state))
        assert begun[: 9 - ahead] + rest == whole
    with pytest.raises(SettingError, match="ahead=40"):
        packed().state_dict(ahead=40)


def test_the_schedule_goes_on_as_well():
    of = profile(0.9)
    losses = [5.0, 4.0, 4.5, 3.0, 2.0, 1.0, 0.5, 0.4, 0.6, 0.3, 0.2]

    def run(state: Any = None, stop: int | None = None) -> tuple[list[str], Any]:
        scheduler = ShuffleScheduler(rate=0.5)
        packed = pack(shuffled(), of, window=8, scheduler=scheduler)
        digests = []
        if state is not None:
            packed.load_state_dict(through_a_file(state))
        while packed.epoch < 2:
            for batch in packed:
                digests.append(digest(batch))
                if scheduler.is_due:
                    scheduler.report(losses[len(scheduler.history) % len(losses)])
                if len(digests) == stop:
                    return digests, packed.state_dict()
        return digests, scheduler.history

    digests, history = run()
    assert len(history) > 6
    for stop in (1, 3, 8, 14, 20):
        begun, state = run(stop=stop)
        rest, history_then = run(state)
        assert begun + rest == digests
        assert history_then == history


JOB = """
import os, sys
import torch
from tests.fae.packing import digest, profile
from tests.fae.test_pack_resume import shuffled
from trainobs.fae import pack

def main(folder, begin):
    torch.set_num_threads(1)
    packed = pack(shuffled(2), profile(0.9), window=4)
    if begin:
        packed.load_state_dict(torch.load(f"{folder}/{begin}.pt"))
    done = begin
    while packed.epoch < 1:
        for batch in packed:
            torch.save(packed.state_dict(), f"{folder}/next.pt")
            done += 1
            os.replace(f"{folder}/next.pt", f"{folder}/{done}.pt")
            print(done, digest(batch), flush=True)

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""


def test_a_killed_process_with_workers_goes_on_bit_equal(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    of = pack(shuffled(), profile(0.9), window=4)
    expected = [f"{i} {digest(batch)}" for i, batch in enumerate(of, 1)]

    def start(begin: int) -> warm.Popen:
        command = [sys.executable, str(job), str(tmp_path), str(begin)]
        return warm.Popen(command, stdout=subprocess.PIPE, text=True)

    found, begin = [], 0
    for kill_after in (6, 5, 99):
        with start(begin) as process:
            for line in process.stdout:
                found.append(line.strip())
                if len(found) - begin == kill_after:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            process.stdout.close()
        begin = len(found)
        assert process.returncode == (-signal.SIGKILL if kill_after < 99 else 0)
    assert found == expected


def a_state(taken: int = 6) -> dict[str, Any]:
    packed = pack(shuffled(), profile(0.9), window=4)
    batches = iter(packed)
    for _ in range(taken):
        next(batches)
    return packed.state_dict()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda state: state.clear(), "KeyError"),
        (lambda state: state.update(version=9), "version 9"),
        (lambda state: state.update(seed=4), "seed 4 in the state, 0 here"),
        (lambda state: state.update(window=5), "window 5 in the state"),
        (lambda state: state.update(world_size=2), "world_size 2 in the state"),
        (lambda state: state.update(fingerprint="00"), "fingerprint '00' in the state"),
        (lambda state: state.update(workers=2), "workers 2 in the state"),
        (lambda state: state.update(batch_size=5), "batch_size 5 in the state, 4 here"),
        (lambda state: state.update(epoch=-1), "-1 where a count should be"),
        (lambda state: state.update(windows="3"), "'3' where a count should be"),
        (lambda state: state.update(windows=3), "3 windows, by worker"),
        (lambda state: state.update(of_rank=None), "TypeError"),
        (lambda state: state.pop("mixed_taken"), "KeyError"),
        (lambda state: state.update(schedule={"kind": "adaptive"}), "adaptive"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused(change, found):
    state = a_state()
    change(state)
    with pytest.raises(TrainobsError) as error:
        pack(shuffled(), profile(0.9), window=4).load_state_dict(state)
    assert found in error.value.found


def test_what_is_no_state_is_refused():
    for state in (None, [], "state", 3):
        with pytest.raises(FAEError):
            pack(shuffled(), profile(0.9), window=4).load_state_dict(state)


@pytest.mark.parametrize("taken", [4, 6, 7], ids=["window ended", "within", "before its last"])
def test_another_order_of_inputs_is_noticed(taken):
    packed = pack(DataLoader(Inputs(70, first=3), 4, collate_fn=collate), profile(0.9), window=4)
    packed.load_state_dict(a_state(taken))
    with pytest.raises(FAEError, match="other inputs in window 1 of epoch 0"):
        next(iter(packed))


def test_a_state_of_another_rank_serves_without_its_own_part():
    state = a_state()
    state["of_rank"] = {"rank": 1, "digest": 5, "states": {0: {"read": 3}}, "generator": None}
    packed = pack(shuffled(), profile(0.9), window=4)
    digests, _ = all_and_states(pack(shuffled(), profile(0.9), window=4), epochs=1)
    assert the_rest(packed, state, epochs=1) == digests[6:]


@pytest.mark.parametrize(("make", "is_told"), [(shuffled, False), (drawn, True)])
def test_a_state_without_the_generator_of_this_rank_is_told(make, is_told, caplog):
    packed = pack(make(), profile(0.9), window=4)
    _, states = all_and_states(packed, epochs=1)
    states[6]["of_rank"]["rank"] = 1
    packed.load_state_dict(states[6])
    assert ("goes on with the state of rank 1" in caplog.text) is is_told


def test_a_state_is_not_changed_by_going_on():
    packed = pack(drawn(), profile(0.9), window=4)
    batches = iter(packed)
    next(batches)
    state = packed.state_dict()
    kept = copy.deepcopy(state)
    list(batches)
    list(packed)
    assert str(state) == str(kept)


def test_the_profile_must_be_the_same():
    other: FAEProfile = profile(0.5)
    with pytest.raises(FAEError, match="fingerprint"):
        pack(shuffled(), other, window=4).load_state_dict(a_state())


def test_the_size_of_batches_that_workers_make_is_part_of_the_state():
    loader = DataLoader(Whole(), batch_size=None, num_workers=1)
    packed = pack(loader, profile(0.9), window=3)
    next(iter(packed))
    assert packed.state_dict()["batch_size"] == 4


class Whole(IterableDataset):
    """Yields batches."""

    def __iter__(self):
        return (collate([make_input(4 * i + j) for j in range(4)]) for i in range(6))
