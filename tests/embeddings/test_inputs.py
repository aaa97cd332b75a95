"""Which lookups of a step are taken for those of one input."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.embeddings.brute import Steps
from trainobs.embeddings.buffer import LookupCall, LookupCapture, joined
from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.embeddings.sites import Site, SiteKind


class Shared(nn.Module):
    """Users, and items by several features."""

    def __init__(self, *, sparse: bool, frozen: bool = False) -> None:
        super().__init__()
        self.user, self.item = (nn.Embedding(9, 2, sparse=sparse) for _ in range(2))
        self.item.weight.requires_grad_(not frozen)

    def forward(self, users, *items):
        return self.user(users).sum() + sum(self.item(each).sum() for each in items)


def sampled_inputs(train, **settings):
    """What of each table the inputs look up that `train` gives a model in one step."""
    model, steps = Shared(**settings), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    train(model)
    lookups.rows(steps.closed())
    lookups.close()
    found = lookups.counts.inputs()
    if not found:
        return None
    sample = found[0]
    pairs = list(zip(sample.tables.tolist(), sample.ids.tolist(), strict=True))
    return sorted(sorted(pairs[a:b]) for a, b in pairwise(sample.offsets))


USERS, TARGETS = torch.tensor([1, 2]), torch.tensor([3, 4])
HISTORIES = torch.tensor([[5, 6], [7, 8]])
WHOLE = [[(0, 1), (1, 3), (1, 5), (1, 6)], [(0, 2), (1, 4), (1, 7), (1, 8)]]


@pytest.mark.parametrize("sparse", [False, True])
def test_what_a_module_is_asked_for_again_before_the_backward_pass_is_of_the_same_inputs(sparse):
    """A target and a history; positive and negative items; both for each user in turn."""
    found = sampled_inputs(lambda model: model(USERS, TARGETS, HISTORIES), sparse=sparse)
    assert found == WHOLE

    def in_turn(model):
        (model(USERS, TARGETS) - model(USERS, HISTORIES)).backward()

    found = sampled_inputs(in_turn, sparse=sparse)
    assert found == [sorted([pairs[0], *pairs]) for pairs in WHOLE]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("clears", [False, True])
def test_batches_whose_gradients_are_summed_have_inputs_of_their_own(sparse, clears):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(USERS, TARGETS, HISTORIES).backward()
            if clears:
                optimizer.step()
                optimizer.zero_grad()

    assert sampled_inputs(train, sparse=sparse) == sorted(3 * WHOLE)


def test_whether_a_module_without_gradients_is_asked_again_for_the_same_inputs_is_unknown():
    def train(model):
        model(USERS, TARGETS, HISTORIES).backward()

    assert sampled_inputs(train, sparse=False, frozen=True) is None


def test_negative_items_for_other_numbers_of_bags_leave_their_inputs_out():
    found = sampled_inputs(lambda model: model(USERS, HISTORIES, HISTORIES.view(-1)), sparse=False)
    assert found is None


def test_modules_of_steps_that_became_one_are_asked_for_other_inputs():
    site, other = (Site(nn.Embedding(9, 2), SiteKind.EMBEDDING, name) for name in "ab")

    def take(serial):
        calls = [LookupCall(one, ("",), (2,), 2, trains=True, ids=None) for one in (site, other)]
        return LookupCapture(serial, sampled=True, calls=calls)

    one = joined([take(1), take(2)])
    assert [call.capture for call in one.calls] == [0, 0, 1, 1]
