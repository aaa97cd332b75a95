"""What hooks must not do: change results, break graphs, travel with copies, stay behind."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch._dynamo
import tqdm
from torch import nn

from tests.embeddings.brute import hooked
from tests.lone_rank import lone_rank
from trainobs.core.records import SETUP
from trainobs.embeddings import buffer, opaque
from trainobs.steps import fast_path
from trainobs.steps.closed_step import ClosedStep

pytestmark = [  # of torch's own making
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = nn.Embedding(100, 8, sparse=True)
        self.bag = nn.EmbeddingBag(50, 4, mode="sum")
        self.last = nn.EmbeddingBag(50, 4, mode="mean", include_last_offset=True)
        self.over = nn.Linear(16, 1)

    def forward(self, ids, bag, offsets, ends):
        parts = [self.flat(ids), self.bag(bag, offsets), self.last(bag, offsets=ends)]
        return self.over(torch.cat(parts, 1)).sum()


def make_batch():
    ends = torch.tensor([0, 2, 2, 5, 9, 10, 10])
    return torch.randint(0, 100, (6,)), torch.randint(0, 50, (10,)), ends[:-1], ends


def new_model():
    torch.manual_seed(5)
    return Model()


def train(model, step_count=4):
    """Losses, weights and gradients of a short training."""
    torch.manual_seed(6)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    seen = []
    for _ in range(step_count):
        optimizer.zero_grad()
        loss = model(*make_batch())
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.grad.to_dense() for p in model.parameters())]
    return seen + [p.detach() for p in model.parameters()] + [torch.rand(1)]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def attributes(model):
    """All that modules have, but for tensors and other modules."""
    return [
        {name: repr(value) for name, value in vars(module).items() if name[:4] != "_par"}
        for module in model.modules()
    ]


@pytest.mark.skipif(fast_path.LANGUAGE != "C", reason="the part in C is not built")
def test_what_is_noted_brings_no_full_garbage_collection_nearer():
    model = new_model()
    lookups, steps = hooked(model, every=None)
    batch = make_batch()
    model(*batch)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        steps.begin()
        model(*batch)
    gc.collect()  # which leaves plain tuples of numbers out from then on
    assert len(gc.get_objects()) - before < 100  # of sampled steps, one in 17
    lookups.close()
    assert len(lookups.rows(steps.closed())) == 3 * 201


def test_a_model_that_was_observed_is_freed():
    model = new_model()
    lookups, _ = hooked(model)
    model(*make_batch())
    gone = weakref.ref(model.flat)
    lookups.close()
    del lookups, model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("every", [1, 2, None])
def test_results_are_equal_to_the_last_bit(every):
    plain = train(new_model())
    model = new_model()
    lookups, _ = hooked(model, every)
    observed = train(model)
    lookups.close()
    assert equal(plain, observed)
    assert not equal(plain, train(new_model(), 3))


def test_hooks_come_off_without_a_trace_and_again():
    model = new_model()
    before = attributes(model)
    for _ in range(2):
        lookups, steps = hooked(model)
        assert attributes(model) != before
        model(*make_batch())
        lookups.close()
        lookups.close()
        assert attributes(model) == before
        assert len(lookups.rows(steps.closed())) == 3
        model(*make_batch())
        assert len(lookups.rows(steps.closed())) == 0


def test_state_dict_is_that_of_the_model():
    model = new_model()
    keys = list(model.state_dict())
    lookups, _ = hooked(model)
    assert list(model.state_dict()) == keys
    model.load_state_dict(new_model().state_dict())
    lookups.close()


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_count_nothing_and_work(way):
    model = new_model()
    lookups, steps = hooked(model)
    model(*make_batch())
    if way == "deepcopy":
        clone = copy.deepcopy(model)
    elif way == "pickle":
        clone = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        clone = torch.load(file, weights_only=False)
    batch = make_batch()
    assert torch.equal(clone(*batch), model(*batch))
    for _ in range(3):
        clone(*batch)
    lookups.close()
    assert lookups.rows(steps.closed())["lookup_count"].tolist() == [12, 20, 20]


def test_ddp():
    with lone_rank():
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(10, 2)))
        lookups, steps = hooked(model)
        model(torch.tensor([1, 1])).sum().backward()
        lookups.close()
        assert [table.name for table in lookups.tables] == ["0"]
        assert lookups.rows(steps.closed())["unique_rows"].tolist() == [1]
        del model, lookups  # with them goes DDP's part of the group


class TestCompiled:
    """`torch.compile` takes lookups into its graphs, without a break."""

    @pytest.fixture(autouse=True)
    def no_thread(self, monkeypatch):
        monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a compiler leaves its thread

    @pytest.mark.parametrize("order", ["hooks first", "compiled first", "in place"])
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_whole_graphs_count_and_change_nothing(self, backend, order):
        plain = train(torch.compile(new_model(), backend=backend, fullgraph=True))
        torch._dynamo.reset()
        model = new_model()
        if order == "hooks first":
            lookups, steps = hooked(model)
            compiled = torch.compile(model, backend=backend, fullgraph=True)
        elif order == "compiled first":
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            lookups, steps = hooked(compiled)
        else:
            model.compile(backend=backend, fullgraph=True)
            compiled = model
            lookups, steps = hooked(compiled)
        observed = train(compiled)
        lookups.close()
        assert equal(plain, observed)
        rows = lookups.rows(steps.closed())
        assert [table.name for table in lookups.tables] == ["flat", "bag", "last"]
        assert rows["lookup_count"].tolist() == [24, 40, 40]
        assert rows["gradient_rows"].tolist() == [rows["unique_rows"][0], 50, 50]
        train(compiled)  # the graph still has the notes, and nobody to give them to
        assert len(lookups.rows(steps.closed())) == 0

    def test_hooks_that_come_too_late_leave_tables_unmeasured_not_idle(self):
        compiled = torch.compile(new_model(), backend="eager")
        compiled(*make_batch())
        lookups, steps = hooked(compiled)
        compiled(*make_batch())
        setup = ClosedStep.from_numbers(0, SETUP, (0, 1))
        rows = lookups.rows([setup, *steps.closed()])
        lookups.close()
        assert rows["table"].tolist() == [0, 1, 2]
        assert not rows["sampled"].any()
        assert all(np.isnan(rows[name]).all() for name in ("lookup_count", "bytes", "unique_rows"))

    def test_a_graph_that_breaks_anyway_breaks_where_it_did(self, caplog):
        def broken(model):
            def forward(*batch):
                loss = model(*batch)
                torch._dynamo.graph_break()
                return loss * 2

            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            torch.compile(forward, backend="eager")(*make_batch())
            return sum(torch._dynamo.utils.counters["graph_break"].values())

        before = broken(new_model())
        model = new_model()
        lookups, steps = hooked(model)
        assert broken(model) == before == 1
        lookups.close()
        assert len(lookups.rows(steps.closed())) == 3


def test_a_fault_is_kept_and_ends_the_counting_not_the_training(monkeypatch):
    model = new_model()
    lookups, steps = hooked(model)
    model(*make_batch())
    monkeypatch.setattr(buffer, "LookupCapture", None)
    steps.begin()
    plain = train(new_model())
    torch.manual_seed(5)
    model.load_state_dict(Model().state_dict())
    assert equal(plain, train(model))
    steps.begin()
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert isinstance(lookups.fault, TypeError)
    assert np.isnan(rows["lookup_count"][rows["step"] > 0]).all()
    assert rows["lookup_count"][rows["step"] == 0].tolist() == [6, 10, 10]


def test_what_traces_a_model_is_no_lookup():
    model = nn.Sequential(nn.Embedding(10, 2))
    lookups, steps = hooked(model)
    torch.fx.symbolic_trace(model)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(torch.tensor([1, 2])))
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert len(rows) == 0


def test_a_torch_without_operators_with_effects_leaves_compiled_tables_unmeasured(monkeypatch):
    def missing(hook):
        raise ImportError

    monkeypatch.setattr(opaque, "register", missing)
    model = new_model()
    lookups, steps = hooked(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(*make_batch())
    assert np.isnan(lookups.rows(steps.closed())["lookup_count"]).tolist() == [True] * 3
    steps.begin()
    model(*make_batch())
    assert lookups.rows(steps.closed(2))["lookup_count"].tolist() == [6, 10, 10]
    lookups.close()
