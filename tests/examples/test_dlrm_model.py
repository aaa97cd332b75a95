from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.functional.classification import binary_auroc

from tests.lone_rank import lone_rank

SCALE, DIM = 0.001, 8


@pytest.fixture
def net(dlrm: SimpleNamespace) -> Any:
    torch.manual_seed(0)
    return dlrm.model.build_dlrm(dlrm.columns.table_rows(SCALE), DIM, bottom=(32,), top=(64, 1))


def batches_of(dlrm: SimpleNamespace, size: int, count: int, first: int = 0) -> Any:
    rows = dlrm.columns.table_rows(SCALE)
    return dlrm.synthetic.SyntheticBatches(rows, size, count, first=first)


def logits(net: Any, batch: Any) -> torch.Tensor:
    return net(batch.dense_features, batch.sparse_features).squeeze(-1)


def test_it_is_the_model_of_the_paper(dlrm: SimpleNamespace) -> None:
    net = dlrm.model.build_dlrm([10] * 26, 16)
    widths = [(13, 512), (512, 256), (256, 64), (64, 16), (367, 512), (512, 256), (256, 1)]
    mlps = sum(inputs * outputs + outputs for inputs, outputs in widths)
    assert sum(parameter.numel() for parameter in net.parameters()) == mlps + 26 * 10 * 16


def test_forward_is_what_the_paper_says(dlrm: SimpleNamespace, net: Any) -> None:
    (batch,) = batches_of(dlrm, 5, 1)
    ids = batch.sparse_features.values().view(26, 5)
    bags = net.sparse_arch.embedding_bag_collection.embedding_bags
    expected = []
    for at in range(5):
        dense = net.dense_arch(batch.dense_features[at : at + 1])[0]
        vectors = [dense, *(bags[f"C{c + 1}"].weight[ids[c, at]] for c in range(26))]
        dots = [vectors[i] @ vectors[j] for i in range(27) for j in range(i + 1, 27)]
        expected.append(net.over_arch(torch.cat([dense, torch.stack(dots)])[None])[0, 0])
    assert len(dots) == 351
    torch.testing.assert_close(logits(net, batch), torch.stack(expected))


def test_sparse_gradients_are_the_same_gradients(dlrm: SimpleNamespace, net: Any) -> None:
    (batch,) = batches_of(dlrm, 64, 1)
    sparse = copy.deepcopy(net)
    dlrm.model.use_sparse_gradients(sparse)
    for one in (net, sparse):
        binary_cross_entropy_with_logits(logits(one, batch), batch.labels).backward()
    for (name, dense), other in zip(net.named_parameters(), sparse.parameters(), strict=True):
        assert other.grad.is_sparse == ("embedding" in name)
        torch.testing.assert_close(other.grad.to_dense(), dense.grad)


def test_it_learns_who_clicks(dlrm: SimpleNamespace, net: Any) -> None:
    batches = batches_of(dlrm, 1024, 40)
    validation = list(batches_of(dlrm, 1024, 8, first=40))

    def auc() -> float:
        with torch.no_grad():
            scores = torch.cat([logits(net, batch) for batch in validation])
        labels = torch.cat([batch.labels for batch in validation]).int()
        return binary_auroc(scores, labels).item()

    assert auc() == pytest.approx(0.5, abs=0.1)
    parameters = list(net.parameters())
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in batches:
        loss = binary_cross_entropy_with_logits(logits(net, batch), batch.labels)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():  # Adagrad; torch.optim would leave a variable in the environment
            for parameter, square, gradient in zip(parameters, squares, gradients, strict=True):
                square += gradient**2
                parameter -= 0.05 * gradient / (square.sqrt() + 1e-10)
    assert auc() > 0.68


@pytest.fixture
def group() -> Iterator[None]:
    with lone_rank():
        yield


# TorchRec uses parts of torch that are deprecated; that is no fault of the example.
@pytest.mark.filterwarnings(r"ignore:.*:Warning:(torch|torchrec|fbgemm_gpu|tensordict)\.")
@pytest.mark.usefixtures("group")
def test_sharded_tables_learn_the_rows_that_were_looked_up(dlrm: SimpleNamespace) -> None:
    rows = dlrm.columns.table_rows(SCALE)
    model = dlrm.sharded.shard(dlrm.sharded.build_net(rows, DIM, lr=0.1), torch.device("cpu"))
    optimizer = dlrm.sharded.build_optimizer(model, lr=0.1)

    def tables() -> dict[str, torch.Tensor]:
        return {
            name.split(".")[-2]: value.local_tensor().clone()
            for name, value in model.state_dict().items()
            if "embedding_bags" in name
        }

    (batch,) = batches_of(dlrm, 64, 1)
    before = tables()
    loss, _ = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    after = tables()
    assert set(after) == set(dlrm.columns.CATEGORIES)
    tables_of_ids = zip(
        dlrm.columns.CATEGORIES, batch.sparse_features.values().view(26, 64), strict=True
    )
    for name, ids in tables_of_ids:
        moved = (before[name] != after[name]).any(dim=1).nonzero().squeeze(1)
        assert moved.tolist() == ids.unique().tolist()
