"""Lookups under `torch.func`, and in compiled code where no note can stand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch._dynamo
import tqdm
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.utils.checkpoint import checkpoint

from tests.embeddings.brute import Expected, compare, hooked

pytestmark = [  # of torch's own making
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:Error detected in"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is"),
]


def expect(lookups, steps, bags, name="Embedding"):
    one = Expected()
    one.add(bags)
    rows = lookups.rows(steps.closed())
    assert lookups.fault is None
    compare(lookups, rows, {(0, name): one})


def parameters(model):
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("every", [1, 1000])
def test_gradients_of_functions_count_exactly(every):
    model = nn.Embedding(100, 4)
    lookups, steps = hooked(model, every)
    ids = torch.randint(0, 100, (5, 3))

    def loss(weights):
        made_inside = torch.cat([ids, ids[:1]])
        return functional_call(model, weights, (made_inside,)).sum()

    grad(loss)(parameters(model))
    jacrev(loss)(parameters(model))
    if every == 1:
        expect(lookups, steps, [*ids.tolist(), ids[0].tolist()] * 2)
    else:
        assert lookups.rows(steps.closed())["lookup_count"].tolist() == [36]
    lookups.close()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_map_over_ids_counts_those_of_all_its_calls(dim):
    model = nn.Embedding(100, 4)
    lookups, steps = hooked(model)
    ids = torch.randint(0, 100, (5, 3, 2))
    vmap(model, in_dims=dim)(ids)
    expect(lookups, steps, ids.movedim(dim, 0).reshape(-1, ids.movedim(dim, 0).shape[-1]).tolist())
    lookups.close()


def test_a_map_over_samples_counts_each_as_a_bag():
    model = nn.Embedding(100, 4)
    lookups, steps = hooked(model)
    ids = torch.randint(0, 100, (8,))

    def loss(weights, one):
        return functional_call(model, weights, (one,)).sum()

    vmap(grad(loss), in_dims=(None, 0))(parameters(model), ids)
    expect(lookups, steps, [[one] for one in ids.tolist()])
    lookups.close()


def test_maps_in_maps_and_bags():
    model = nn.EmbeddingBag(100, 4, mode="sum")
    lookups, steps = hooked(model)
    ids = torch.randint(0, 100, (2, 5, 4, 3))
    vmap(vmap(model, in_dims=1), in_dims=3)(ids.permute(1, 3, 2, 0))
    bags = ids.permute(1, 3, 2, 0)
    every = [bags[:, i, :, k] for k in range(2) for i in range(3)]
    expect(lookups, steps, [b for one in every for b in one.tolist()], "EmbeddingBag")
    lookups.close()


def test_what_is_not_known_is_null_in_its_step_alone_and_told_once(caplog):
    model = nn.Embedding(100, 4)
    lookups, steps = hooked(model)
    ids = torch.randint(0, 100, (5,))
    weights = {"weight": torch.randn(3, 100, 4)}
    for _ in range(2):
        vmap(lambda w: functional_call(model, w, (ids,)))(weights)
        jacfwd(lambda w: functional_call(model, w, (ids,)).sum())(parameters(model))
        steps.begin()
        model(ids)
        steps.begin()
    counts = lookups.rows(steps.closed())["lookup_count"]
    assert str(counts.tolist()) == "[nan, 5.0, nan, 5.0]"
    assert lookups.fault is None
    assert caplog.text.count("does not know all lookups of 'Embedding'") == 1
    lookups.close()


def test_bags_of_nested_tensors_are_unknown_not_zero():
    model = nn.Embedding(100, 4)
    lookups, steps = hooked(model)
    parts = [torch.arange(3), torch.arange(5)]
    model(torch.nested.nested_tensor(parts, layout=torch.jagged))
    rows = lookups.rows(steps.closed())
    assert np.isnan([rows["lookup_count"][0], rows["bag_count"][0]]).all()
    lookups.close()


class Held(nn.Module):
    """Looks rows up within what takes functions."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.table = nn.Embedding(100, 4)
        self.other = nn.Embedding(100, 4)

    def forward(self, ids):
        also = self.other(ids)
        if self.kind == "cond":
            return also + torch.cond(
                ids.sum() > 20, lambda x: self.table(x), lambda x: self.table(x) * 2, (ids,)
            )
        if self.kind == "vmap":
            return also + vmap(lambda x: self.table(x))(ids)
        return also + checkpoint(self.table, ids, use_reentrant=False)


@pytest.mark.parametrize("kind", ["cond", "vmap", "checkpoint"])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_code_counts_or_tells_and_never_fails(kind, fullgraph, caplog, monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a compiler leaves its thread
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if kind == "cond" and torch.__version__ < "2.6":
        pytest.skip("torch 2.5 fails there, observed or not")
    model = Held(kind)
    lookups, steps = hooked(model)
    model.other(torch.arange(4))
    steps.begin()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
    for _ in range(2):
        compiled(torch.arange(8)).sum().backward()
    steps.begin()
    model.table(torch.arange(2))  # what is seen of it is not all, perhaps
    rows = lookups.rows(steps.closed())
    lookups.close()
    torch._dynamo.reset()
    of = {name: rows[rows["table"] == index] for index, name in enumerate(("table", "other"))}
    assert of["other"]["lookup_count"].tolist() == [4, 16]
    known = [16, 2] if kind == "checkpoint" else [np.nan, np.nan]
    assert str(of["table"]["lookup_count"].tolist()) == str([float(one) for one in known])
    told = "counts lookups of 'table' no more"
    assert caplog.text.count(told) == (kind != "checkpoint")
    assert lookups.fault is None
