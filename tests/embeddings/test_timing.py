"""The time of forwards that look rows up: in sampled steps, and nothing of it left on the model."""

from __future__ import annotations

import copy
import pickle
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.steps.closed_step import ClosedStep

SLEEP_S = 0.02
OUTSIDE = "not in the valid range|index_size"
"""What torch says of an id that is no row depends on the processor."""


@dataclass
class Steps:
    """A model whose lookups are counted, and steps of it."""

    model: nn.Module
    every: int = 1
    serial: int = 0

    def __post_init__(self) -> None:
        self.lookups = ModelLookups(self.model, lambda: self.serial, every=self.every)

    def close(self) -> np.ndarray:
        """The rows of the step, which is over."""
        serial, self.serial = self.serial, self.serial + 1
        return self.lookups.rows([ClosedStep.from_numbers(serial, serial, (0, 10**9))])


class Slow(nn.EmbeddingBag):
    """Takes its time, and tells how long."""

    took_ns = 0

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        begin = time.monotonic_ns()
        time.sleep(SLEEP_S)
        found = super().forward(*args, **kwargs)
        self.took_ns += time.monotonic_ns() - begin
        return found


def timed(cls: type[Slow] = Slow, every: int = 1) -> Steps:
    """Steps of a bag that gets its slow forward once its hooks are on it: not before, since of a
    class with a forward of its own nothing is counted."""
    steps = Steps(nn.EmbeddingBag(10, 4), every)
    steps.model.__class__ = cls
    return steps


def call_time(model: Slow) -> int:
    """Look rows up; how long that took with all hooks around it, ns."""
    begin = time.monotonic_ns()
    model(IDS)
    return time.monotonic_ns() - begin


IDS = torch.tensor([[1, 2], [2, 3]])


def test_a_forward_is_timed_whole_and_what_follows_is_not():
    steps = timed()
    around = call_time(steps.model)
    time.sleep(SLEEP_S)
    (row,) = steps.close()
    assert steps.model.took_ns <= row["forward_ns"] <= around


def test_two_calls_of_a_step_count_together():
    steps = timed()
    around = call_time(steps.model) + call_time(steps.model)
    (row,) = steps.close()
    assert steps.model.took_ns <= row["forward_ns"] <= around


def test_only_sampled_steps_have_a_time_and_only_their_calls_a_hook():
    steps = timed(every=3)
    model, hooks = steps.model, []
    inner = model.forward
    model.forward = lambda *a: (hooks.append(len(model._forward_hooks)), inner(*a))[1]
    for _ in range(6):
        model(IDS)
        hooks.append(len(model._forward_hooks))
        (row,) = steps.close()
        assert np.isnan(row["forward_ns"]) != row["sampled"]
    assert sorted(hooks) == [0] * 10 + [1] * 2


def test_a_forward_that_raises_leaves_no_time_and_the_next_one_is_right():
    steps = timed()
    with pytest.raises(RuntimeError, match=OUTSIDE):
        steps.model(IDS + 100)
    (row,) = steps.close()
    assert np.isnan(row["forward_ns"])
    around = call_time(steps.model)
    (row,) = steps.close()
    assert steps.model.took_ns <= row["forward_ns"] <= around


def test_in_a_step_of_which_a_call_was_not_timed_the_time_is_unknown():
    steps = timed()
    with pytest.raises(RuntimeError, match=OUTSIDE):
        steps.model(IDS + 100)
    steps.model(IDS)
    (row,) = steps.close()
    assert np.isnan(row["forward_ns"])


def test_tables_of_one_module_share_its_time_by_their_bytes():
    torchrec = pytest.importorskip("torchrec")
    config = torchrec.EmbeddingBagConfig
    model = torchrec.EmbeddingBagCollection(
        tables=[
            config(name="wide", num_embeddings=10, embedding_dim=32, feature_names=["w"]),
            config(name="thin", num_embeddings=10, embedding_dim=8, feature_names=["t"]),
        ]
    )
    steps = Steps(model)
    ids, lengths = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 1, 1, 1])
    model(torchrec.KeyedJaggedTensor(["w", "t"], ids, lengths=lengths))
    wide, thin = steps.close()
    assert wide["forward_ns"] == pytest.approx(4 * thin["forward_ns"])
    assert wide["forward_ns"] > 0
    model(torchrec.KeyedJaggedTensor(["w", "t"], ids[:2], lengths=torch.tensor([1, 1, 0, 0])))
    wide, thin = steps.close()
    assert wide["forward_ns"] > 0 == thin["forward_ns"]  # which was asked, for nothing


def test_copies_and_pickles_of_a_model_in_mid_forward_are_plain():
    class Copied(Slow):
        copies: list[nn.Module]

        def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
            copied = pickle.loads(pickle.dumps(self._forward_hooks))
            self.copies = [copied, copy.deepcopy(self._forward_hooks)]
            return super().forward(*args, **kwargs)

    steps = timed(Copied)
    steps.model(IDS)
    for hooks in steps.model.copies:
        (hook,) = hooks.values()
        assert hook(None, (), torch.zeros(1)) is None
        assert "trainobs" not in type(hook).__module__


def test_closed_in_mid_forward_nothing_is_left():
    class Closing(Slow):
        def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
            steps.lookups.close()
            return super().forward(*args, **kwargs)

    steps = timed(Closing)
    steps.model(IDS)
    assert not steps.model._forward_hooks
    assert not steps.model._forward_pre_hooks


def test_modules_that_share_a_weight_add_up_their_times():
    first, second = nn.EmbeddingBag(10, 4), nn.EmbeddingBag(10, 4)
    second.weight = first.weight
    steps = Steps(nn.ModuleList([first, second]))
    first.__class__ = second.__class__ = Slow
    around = call_time(first) + call_time(second)
    (row,) = steps.close()
    assert first.took_ns + second.took_ns <= row["forward_ns"] <= around
    first(IDS)
    with pytest.raises(RuntimeError, match=OUTSIDE):
        second(IDS + 100)
    (row,) = steps.close()
    assert np.isnan(row["forward_ns"])
