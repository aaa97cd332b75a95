"""What makes another program of an observed model: it goes without us, and the counting goes on."""

from __future__ import annotations

import copy
import io
import pickle
import sys

import pytest
import torch
import tqdm
from torch import nn

from tests import warm
from tests.embeddings.brute import hooked
from trainobs.embeddings import registration

pytestmark = [  # of torch's own making
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*TorchScript"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
BATCH = (torch.arange(3), torch.arange(6).view(3, 2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = nn.Embedding(100, 4)
        self.bag = nn.EmbeddingBag(100, 4, mode="sum")

    def forward(self, ids, bag):
        return self.flat(ids) + self.bag(bag)


def counted(lookups, steps):
    rows = lookups.rows(steps.closed())
    assert lookups.fault is None
    return rows["lookup_count"].tolist()


def script(model):
    return torch.jit.script(model)


def script_of_deepcopy(model):
    return torch.jit.script(copy.deepcopy(model))


def script_of_pickle(model):
    return torch.jit.script(pickle.loads(pickle.dumps(model)))


def script_of_copy_of_copy(model):
    return torch.jit.script(copy.deepcopy(pickle.loads(pickle.dumps(copy.deepcopy(model)))))


@pytest.mark.parametrize(
    "way", [script, script_of_deepcopy, script_of_pickle, script_of_copy_of_copy]
)
def test_an_observed_model_is_scripted_without_hooks_and_counted_on(way):
    model = Model()
    plain = torch.jit.script(copy.deepcopy(model))
    lookups, steps = hooked(model)
    scripted = way(model)
    assert all(not module._forward_pre_hooks for module in scripted.modules())
    assert scripted.flat.code == plain.flat.code
    saved = io.BytesIO()
    torch.jit.save(scripted, saved)
    saved.seek(0)
    assert torch.equal(torch.jit.load(saved)(*BATCH), model(*BATCH))
    scripted(*BATCH)
    assert counted(lookups, steps) == [3, 6]
    lookups.close()


def test_hooks_of_others_are_scripted_in_their_order():
    def of_another(self, input: tuple[torch.Tensor]) -> None:
        print("asked")

    model = nn.Sequential(nn.Embedding(10, 2))
    lookups, _ = hooked(model)
    model[0].register_forward_pre_hook(of_another)
    hooks = model[0]._forward_pre_hooks
    scripted = list(torch.jit.script(model).modules())[1]
    assert len(scripted._forward_pre_hooks) == 1
    assert model[0]._forward_pre_hooks is hooks
    assert list(hooks.values())[-1] is of_another
    lookups.close()
    assert list(hooks.values()) == [of_another]


def test_torch_scripts_as_before_when_the_last_hook_is_off(monkeypatch):
    before = torch.jit._recursive.create_script_module
    before = getattr(before, "__wrapped__", before)  # other tests may have left models hooked
    monkeypatch.setattr(torch.jit._recursive, "create_script_module", before)
    monkeypatch.setattr(registration, "_patched", 0)
    first, _ = hooked(Model())
    second, _ = hooked(Model())
    first.close()
    first.close()
    assert torch.jit._recursive.create_script_module is not before
    second.close()
    assert torch.jit._recursive.create_script_module is before


def without_trainobs(code: str, file) -> str:
    """What a program prints where trainobs is not installed."""
    code = f"import sys, torch\nsys.modules['trainobs'] = None\n{code}"
    done = warm.run([sys.executable, "-c", code, file])
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_copy_has_no_hook_and_takes_any_other_under_any_number(tmp_path):
    model = nn.Sequential(nn.Embedding(10, 2))
    lookups, _ = hooked(model)
    assert not copy.deepcopy(model)[0]._forward_pre_hooks
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    lookups.close()
    code = (
        "import pickle\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for _ in range(300): model[0].register_forward_pre_hook(lambda module, args: None)\n"
        "print(tuple(model(torch.tensor([1, 2])).shape))\n"
    )
    assert without_trainobs(code, tmp_path / "model") == "(2, 2)\n"


@pytest.mark.parametrize("every", [1, None])
@pytest.mark.parametrize("trains", [True, False])
def test_tracing_counts_nothing_of_its_example_and_ends_no_counting(trains, every):
    model = Model()
    lookups, steps = hooked(model, every)
    model(*BATCH)
    traced = torch.jit.trace(model.train(trains), BATCH, check_trace=False)
    traced(torch.arange(7), torch.arange(14).view(7, 2))
    model.train()(*BATCH)
    assert counted(lookups, steps) == [6, 12]
    lookups.close()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_an_exported_program_holds_no_operator_of_ours(strict, trains, tmp_path, monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a compiler leaves its thread
    model = Model()
    lookups, steps = hooked(model)
    model(*BATCH)
    program = torch.export.export(model.train(trains), BATCH, strict=strict)
    assert "trainobs" not in str(program.graph)
    model.train()(*BATCH)
    assert counted(lookups, steps) == [6, 12]
    lookups.close()
    torch._dynamo.reset()
    if strict and trains:
        torch.export.save(program, tmp_path / "program.pt2")
        code = (
            "module = torch.export.load(sys.argv[1]).module()\n"
            "print(tuple(module(torch.arange(3), torch.arange(6).view(3, 2)).shape))\n"
        )
        assert without_trainobs(code, tmp_path / "program.pt2") == "(3, 4)\n"


@pytest.mark.parametrize("way", ["script", "trace"])
def test_what_was_scripted_before_is_told_and_null(way, caplog):
    model = Model()
    made = torch.jit.script(model) if way == "script" else torch.jit.trace(model, BATCH)
    lookups, steps = hooked(made)
    assert caplog.text.count("does not count lookups of 'flat', 'bag'") == 1
    assert [(t.name, t.row_count, t.dim) for t in lookups.tables] == [
        ("flat", 100, 4),
        ("bag", 100, 4),
    ]
    made(*BATCH)
    assert str(counted(lookups, steps)) == "[nan, nan]"
    lookups.close()
