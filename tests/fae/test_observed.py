"""What an observer is told of hot rows, against the batches themselves."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.embeddings.brute import Steps
from tests.fae.batches import Batch, batches, packed
from tests.fae.cases import Case, Table, profile_of
from tests.fae.parity import build, fae_sharder
from tests.fae.ranks import Ranks
from trainobs import observe
from trainobs.access import AccessCounts
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue import CATALOGUE, HOT_ROWS
from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.fae.kjt.split import SlotMap
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.usefixtures("lone_rank")
KINDS = ("mixed", "pure", "plain", "pure", "cold", "mixed")
CASE = Case(
    seed=5,
    world_size=1,
    tables=(
        Table("t0", 30, 8, PoolingType.SUM, ("f0", "f1"), "row_wise", tuple(range(3, 30, 4))),
        Table("t1", 9, 16, PoolingType.SUM, ("f2",), "table_wise", (0, 2, 3, 8)),
    ),
    optimizer="sgd",
    weighted=False,
    pipelined=False,
    kinds=KINDS,
    inputs=6,
)
SEQUENCE_CASE = replace(
    CASE, sequences=True, tables=(CASE.tables[0], replace(CASE.tables[1], dim=8))
)
CASES = pytest.mark.parametrize("case", [CASE, SEQUENCE_CASE], ids=["bags", "sequences"])


def train(
    case: Case, model: DistributedModelParallel, run_dir: Path, *, marks: bool = True
) -> None:
    """Train on the case's batches, observed, with an evaluation in between."""
    slots = SlotMap.from_profile(profile_of(case))
    is_fae = "FAE" in type(model.module.collection).__name__
    feed = [Batch(packed(k, kjt, slots) if is_fae else kjt) for k, kjt in batches(case, 0)]
    optimizer = torch.optim.SGD(
        [p for name, p in model.named_parameters() if name.startswith("over")], lr=0.05
    )
    with observe(probes="off", run_dir=run_dir, model=model, embedding_every=1) as obs:
        if case.pipelined:
            pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
            source = iter(feed)
            for _ in feed:
                with obs.step():
                    pipeline.progress(source)
            return
        for batch in feed if marks else obs.loader(feed):
            with obs.step() if marks else nullcontext():
                loss, _ = model(batch)
                loss.backward()
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    model(batch)
                model.train()


def ids_of(case: Case, kjt: KeyedJaggedTensor, table: Table) -> np.ndarray[Any, Any]:
    return np.concatenate([kjt[name].values().numpy() for name in table.features])


def expected(case: Case) -> dict[str, list[float]]:
    """What each step's batch says, counted by hand."""
    result: dict[str, list[float]] = {name: [] for name in ("lookups", "hot", "saved", "pure")}
    for kind, kjt in batches(case, 0):
        served = hot = saved = 0
        for table in case.tables:
            ids = ids_of(case, kjt, table)
            found = int(np.isin(ids, table.hot).sum())
            served, hot, saved = (
                served + len(ids),
                hot + found,
                saved + found * table.dim * 4,
            )
        pure = kind == "pure"
        by_tables = case.mode == "paper" and not pure
        result["lookups"].append(served)
        result["hot"].append(0 if by_tables else hot)
        result["saved"].append(0 if by_tables else saved)
        result["pure"].append(pure)
    return result


def steps(run_dir: Path) -> Any:
    table = pq.read_table(run_dir / "rank=0" / "steps-00000.parquet", partitioning=None)
    return table.filter(table["step"].is_valid())


@CASES
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
@pytest.mark.parametrize("loop", ["marked", "unmarked", "pipelined"])
def test_what_is_logged_is_what_the_batches_say(
    tmp_path: Path, mode: str, loop: str, case: Case
) -> None:
    case = replace(case, mode=mode, pipelined=loop == "pipelined")
    model = build(case, fae_sharder(case, profile_of(case)))
    train(case, model, tmp_path / "run", marks=loop != "unmarked")
    found, true = steps(tmp_path / "run"), expected(case)
    assert sum(true["hot"]) > 10
    assert found["fae/lookup_count"].to_pylist() == true["lookups"]
    assert found["fae/hot_lookup_count"].to_pylist() == true["hot"]
    assert found["fae/saved_bytes"].to_pylist() == true["saved"]
    assert found["fae/pure_step"].to_pylist() == true["pure"]
    assert found["fae/input_count"].to_pylist() == [case.inputs] * len(KINDS)
    assert found["fae/hot_input_ratio"].to_pylist() == true["pure"]
    ratios = np.array(true["hot"]) / np.array(true["lookups"])
    assert found["fae/hot_lookup_ratio"].to_pylist() == pytest.approx(ratios.tolist())
    times = {"fae/pure_step_ns": True, "fae/mixed_step_ns": False}
    for name, pure in times.items():
        known = [value is not None for value in found[name].to_pylist()]
        assert known == [one == pure for one in true["pure"]]
    hot_bytes = sum(len(table.hot) * table.dim * 4 for table in case.tables)
    assert set(found["fae/hot_bytes"].to_pylist()) == {hot_bytes}
    assert sum(found["fae/sync_ns"].to_pylist()) > 0  # the tables were read once
    assert "fae/drift_ratio" not in found.column_names  # the rows were given, not calibrated


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_bytes_are_those_of_the_ranks_that_read_them(pair: Ranks, mode: str) -> None:
    kinds = ("mixed", "pure", "mixed", "pure")  # packed: of others nobody knows which are hot
    for found, true in pair.run(_remote_bytes, replace(CASE, mode=mode, world_size=2, kinds=kinds)):
        assert found == true
        assert sum(true) > 0


def _remote_bytes(rank: int, case: Case) -> tuple[list[float], list[float]]:
    """Bytes that the other rank read for this one in each step: as counted, and by hand."""
    model = build(case, fae_sharder(case, profile_of(case)))
    steps, slots = Steps(), SlotMap.from_profile(profile_of(case))
    lookups = ModelLookups(model, lambda: steps.serial, every=1, rank=rank, world_size=2)
    for kind, kjt in batches(case, rank):
        steps.begin()
        model(Batch(packed(kind, kjt, slots)))[0].backward()
    rows = lookups.rows(steps.closed())
    lookups.close()
    of_step = [rows[rows["step"] == step] for step in range(len(case.kinds))]
    found = [float(table_rows["remote_bytes"].sum()) for table_rows in of_step]
    assert np.array_equal(rows["host_bytes"] + rows["remote_bytes"], rows["bytes"])
    true = []
    for kind, kjt in batches(case, rank):
        copies = case.mode == "overlay" or (case.mode == "paper" and kind == "pure")
        read = 0.0
        for place, table in enumerate(case.tables):
            ids = ids_of(case, kjt, table)
            owners = ids >= table.rows // 2 if table.sharding == "row_wise" else place % 2
            is_remote = (owners != rank) & ~(copies & np.isin(ids, table.hot))
            read += np.broadcast_to(is_remote, ids.shape).sum() * table.dim * 4
        true.append(float(read))
    return found, true


@CASES
def test_lookups_of_packed_batches_are_those_of_the_batches(tmp_path: Path, case: Case) -> None:
    train(case, build(case, fae_sharder(case, profile_of(case))), tmp_path / "run")
    table = pq.read_table(
        tmp_path / "run" / "rank=0" / "embeddings-00000.parquet", partitioning=None
    )
    counts = AccessCounts.load(tmp_path / "run" / "access-counts")
    for of in case.tables:
        whole = [ids_of(case, kjt, of) for _, kjt in batches(case, 0)]
        rows = table.filter([name == of.name for name in table["table"].to_pylist()])
        order = np.argsort(rows["step"].to_pylist())
        logged = np.array(rows["lookup_count"].to_pylist())[order]
        assert logged.tolist() == [len(ids) for ids in whole]
        unique = np.array(rows["unique_rows"].to_pylist())[order]
        assert unique.tolist() == [len(set(ids.tolist())) for ids in whole]
        assert set(rows["bag_count"].to_pylist()) == {case.inputs * len(of.features)}
        brute = np.bincount(np.concatenate(whole), minlength=of.rows)
        assert counts.counts(of.name).tolist() == brute.tolist()


def test_it_is_in_tensorboard_and_in_the_report(tmp_path: Path) -> None:
    train(CASE, build(CASE, fae_sharder(CASE, profile_of(CASE))), tmp_path / "run")
    true = expected(CASE)
    summary = summarize(RunLog.open(tmp_path / "run"))
    share = sum(true["hot"]) / sum(true["lookups"])
    assert summary["metrics"]["fae/hot_lookup_ratio"]["mean"] == pytest.approx(share)
    assert summary["metrics"]["fae/saved_bytes"]["sum"] == sum(true["saved"])
    page = render(summary)
    assert "Hot rows\n" in page
    assert "a mixed step" in page
    events = EventAccumulator(str(next((tmp_path / "run").rglob("events.out*")).parent))
    events.Reload()
    curve = events.Scalars("trainobs/fae/hot_lookup_percent")
    shares = [100 * hot / all for hot, all in zip(true["hot"], true["lookups"], strict=True)]
    assert [point.value for point in curve] == pytest.approx(shares, rel=1e-5)
    layout = events.Tensors("custom_scalars__config__")
    assert b"Lookups that hot rows served" in layout[-1].tensor_proto.string_val[0]


def test_a_run_without_hot_rows_says_nothing_of_them(tmp_path: Path) -> None:
    train(CASE, build(CASE, EmbeddingBagCollectionSharder()), tmp_path / "run")
    assert not any(name.startswith("fae/") for name in steps(tmp_path / "run").column_names)
    assert len(steps(tmp_path / "run").column_names) == 3 + len(CATALOGUE)
    assert "hot_rows" not in json.loads((tmp_path / "run" / "run.json").read_text())["capabilities"]
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert not {metric.name for metric in HOT_ROWS} & set(summary["metrics"])
    assert "Hot rows\n" not in render(summary)
    for file in (tmp_path / "run").rglob("events.out*"):
        assert b"hot rows" not in file.read_bytes()
        assert b"fae/" not in file.read_bytes()


def test_observing_changes_nothing(tmp_path: Path) -> None:
    weights = []
    for observed in (True, False):
        model = build(CASE, fae_sharder(CASE, profile_of(CASE)))
        slots = SlotMap.from_profile(profile_of(CASE))
        feed = [Batch(packed(kind, kjt, slots)) for kind, kjt in batches(CASE, 0)]
        if observed:
            with observe(probes="off", run_dir=tmp_path, model=model, embedding_every=1) as obs:
                for batch in feed:
                    with obs.step():
                        model(batch)[0].backward()
        else:
            for batch in feed:
                model(batch)[0].backward()
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        other = weights[1][name]
        if hasattr(value, "local_shards"):
            value, other = value.local_tensor(), other.local_tensor()
        assert torch.equal(value, other), name


def test_two_ranks_time_what_keeps_them_equal(pair: Ranks) -> None:
    for lookups, totals in pair.run(_sync_time):
        assert totals.sync_ns > 0
        assert totals.lookup_count == lookups
        assert totals.batch_count == len(KINDS)


def _sync_time(rank: int) -> tuple[int, Any]:
    case = replace(CASE, world_size=2)
    model = build(case, fae_sharder(case, profile_of(case)))
    slots = SlotMap.from_profile(profile_of(case))
    feed = batches(case, rank)
    for kind, kjt in feed:
        model(Batch(packed(kind, kjt, slots)))[0].backward()
    lookups = sum(len(ids_of(case, kjt, table)) for _, kjt in feed for table in case.tables)
    return lookups, model.module.collection.served_by_hot_rows.totals()


def test_a_stock_collection_that_is_given_packed_batches_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(CASE, EmbeddingBagCollectionSharder())
    slots = SlotMap.from_profile(profile_of(CASE))
    feed = [(Batch(kjt), Batch(packed(kind, kjt, slots))) for kind, kjt in batches(CASE, 0)]
    for place in (0, 1):
        logging.disable(logging.NOTSET)
        run_dir = tmp_path / f"{place}"
        with observe(probes="off", run_dir=run_dir, model=model, embedding_every=1) as obs:
            for batch in feed:
                with obs.step():
                    model(batch[place])
        logging.disable(logging.WARNING)
        assert caplog.text.count("lookups of hot rows are lost") == place
    assert "module 'collection', which keeps no hot rows" in caplog.text
