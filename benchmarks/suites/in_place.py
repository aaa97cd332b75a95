"""A pytest plugin: TorchRec's tests with FAE's sharders in the place of the stock ones.

`torchrec_tests.py` sets two environment variables. SUITE_OUTCOMES: the file for the outcomes.
SUITE_FAE: a folder, in which each test leaves what became of the collections that it sharded: a
line "hot" for one with hot rows, and the reason for one that was refused, which TorchRec shards
then; a test ends where one is refused with a batch.
Without SUITE_FAE the stock sharders shard.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from observed import pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401  outcomes
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.test_utils import emb_sharder, test_model

from trainobs.core.errors import FAEError
from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEEmbeddingCollectionSharder,
    FAEFeatureProcessedEmbeddingBagCollectionSharder,
    FAEProfile,
    TableProfile,
)
from trainobs.fae.sharding.torchrec_private import collection_settings

NOTES = os.environ.get("SUITE_FAE", "")
WITH_A_BATCH = "with a batch: "


def pytest_sessionstart() -> None:
    """Change what tests of several ranks start, and the sharders if that is asked for."""
    for name in vars(emb_sharder):  # they moved, and tests of before import them from there
        setattr(test_model, name, getattr(emb_sharder, name))
    torch.set_num_threads(1)  # threads of torch's would not live in forked ranks
    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context("fork")  # type: ignore[assignment]
    if NOTES:
        for stock, ours in (
            (EmbeddingBagCollectionSharder, FAEEmbeddingBagCollectionSharder),
            (EmbeddingCollectionSharder, FAEEmbeddingCollectionSharder),
            (
                FeatureProcessedEmbeddingBagCollectionSharder,
                FAEFeatureProcessedEmbeddingBagCollectionSharder,
            ),
        ):
            stock.shard = _in_place_of(stock.shard, ours)


def pytest_exception_interact(call: pytest.CallInfo[None]) -> None:
    """Note what was refused with a batch, here or in a rank of which the error tells."""
    if NOTES and call.excinfo is not None:
        text = "".join(traceback.format_exception(call.excinfo.value))  # of groups, too
        for found in re.findall(r"FAEError: .*\n[ |]*found: (.*)", text):
            _note(f"{WITH_A_BATCH}{found}")


def note_of(test: str) -> str:
    """The name of the file that a test leaves."""
    return hashlib.sha256(test.encode()).hexdigest()


def _in_place_of(stock: Callable[..., Any], sharder: Any) -> Callable[..., Any]:
    def shard(
        self: Any, module: Any, params: Any, env: Any, device: Any = None, module_fqn: Any = None
    ) -> Any:
        if isinstance(self, sharder):
            return stock(self, module, params, env, device, module_fqn)
        try:
            of_tables = getattr(self, "_ebc_sharder", self)  # under feature processors
            ours = sharder(
                _half_hot(module),
                fused_params=of_tables.fused_params,
                qcomm_codecs_registry=of_tables.qcomm_codecs_registry,
                **collection_settings(of_tables),
            )
            sharded = ours.shard(module, params, env, device, module_fqn)
        except FAEError as error:
            _note(str(error).splitlines()[1].removeprefix("  found: "))
            return stock(self, module, params, env, device, module_fqn)
        _note("hot")
        return sharded

    return shard


def _note(line: str) -> None:
    test = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
    with Path(NOTES, note_of(test)).open("a") as file:
        file.write(line + "\n")


def _half_hot(module: Any) -> FAEProfile:
    """Every second row is hot."""
    is_processed = hasattr(module, "split")
    if is_processed:
        _, module = module.split()
    pools = hasattr(module, "embedding_bag_configs")
    configs = module.embedding_bag_configs() if pools else module.embedding_configs()
    return FAEProfile(
        tuple(
            TableProfile(
                name=config.name,
                row_count=config.num_embeddings,
                dim=config.embedding_dim,
                features=tuple(config.feature_names),
                hot_ids=np.arange(0, config.num_embeddings, 2),
                row_bytes=config.embedding_dim * 4,
                is_sequence=not pools,
                is_positional=is_processed,
            )
            for config in configs
        ),
        budget_bytes=1 << 30,
    )
