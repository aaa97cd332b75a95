"""The tables of a model, the bytes of their rows, and those that cannot have hot rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.fae.skewed import tables
from trainobs.core.errors import SettingError
from trainobs.fae.profile.model_tables import STATE_FLOATS, optimizer_name, tables_of
from trainobs.fae.sharding.checks import OPTIMIZERS


@pytest.mark.parametrize(
    ("optimizer", "row_bytes"),
    [
        (None, 20),
        ("sgd", 16),
        ("adagrad", 32),
        ("RowWiseAdagrad", 20),
        (torch.optim.Adam, 48),
        (torch.optim.AdamW, 48),
        (torch.optim.AdamW([torch.zeros(1)]), 48),
        ("adamw", 48),
        ("partial_row_wise_adam", 36),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_a_hot_row_takes_its_weights_and_its_optimizer_state(optimizer, row_bytes):
    assert {table.row_bytes for table in tables_of(tables(), optimizer)} == {row_bytes}


@pytest.mark.parametrize("optimizer", ["shampoo", "lamb", EmbOptimType.PARTIAL_ROWWISE_LAMB])
def test_an_optimizer_that_the_sharder_would_refuse_is_refused_before_the_calibration(optimizer):
    with pytest.raises(SettingError, match="the sharder would refuse it"):
        tables_of(tables(), optimizer)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data_type": DataType.BF16}, "rows of BF16"),
        ({"data_type": DataType.INT8}, "rows of INT8"),
        ({"use_virtual_table": True}, "virtual rows of FP32"),
    ],
)
def test_rows_that_the_sharder_would_refuse_are_refused_before_the_calibration(change, told):
    first, *others = tables()
    with pytest.raises(SettingError, match=f"{told} in table '{first.name}'"):
        tables_of([dataclasses.replace(first, **change), *others])


def test_the_sharder_trains_hot_rows_with_the_same_optimizers():
    """`ADAM` of FBGEMM is AdamW, too: its weight decay is apart from the gradient."""
    assert {*map(optimizer_name, OPTIMIZERS), "adamw"} == STATE_FLOATS.keys()


def test_a_model_tells_its_tables_and_their_optimizer():
    from torch.distributed.optim import _apply_optimizer_in_backward as in_backward

    bags = EmbeddingBagCollection(tables=tables(), device=torch.device("meta"))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), bags)
    assert tables_of(model) == tables_of(tables())
    in_backward(torch.optim.Adagrad, bags.parameters(), {"lr": 0.1})
    assert tables_of(model) == tables_of(tables(), EmbOptimType.EXACT_ADAGRAD)
    with pytest.raises(SettingError, match="none in tables=, a Linear"):
        tables_of(torch.nn.Linear(2, 2))
