"""Train with FAE and shuffled, and compare: `python benchmarks/fae_auc.py [--quick]`.

The DLRM of examples/dlrm, with smaller layers, trains on made-up inputs like Criteo's, from each
seed in four ways that differ in the order of the inputs and in what hot rows do:

    shuffled   TorchRec's sharder, inputs in random order
    again      the same in another random order: how much the order alone matters
    overlay    FAE's sharder, packed batches in random order of kinds
    paper      FAE's sharder in mode "paper", runs of both kinds by the ShuffleScheduler

and the areas under the ROC curve on the same inputs that none has seen are compared. Two cores are
used, however many there are. `--data train.txt` takes lines of Criteo instead: its first six
sevenths to train on, the rest to judge; seeds then differ in weights and orders.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "dlrm"))

from columns import make_batch, table_rows  # type: ignore[import-not-found]  # noqa: E402
from criteo import CriteoBatches, split  # type: ignore[import-not-found]  # noqa: E402
from model import build_dlrm, build_tables  # type: ignore[import-not-found]  # noqa: E402
from sharded import build_optimizer, shard  # type: ignore[import-not-found]  # noqa: E402
from synthetic import CHUNK, Generator  # type: ignore[import-not-found]  # noqa: E402

from trainobs.fae import (  # noqa: E402
    FAEEmbeddingBagCollectionSharder,
    FAEProfile,
    ShuffleScheduler,
    calibrate,
    pack,
)
from trainobs.fae.kjt.split import read_mark  # noqa: E402
from trainobs.host.facts import host_facts  # noqa: E402

RESULTS = Path(__file__).parent / "results"
DIM, BATCH, LR = 8, 512, 0.02
ROWS_SCALE, HOT_BYTES = 0.01, "800kB"
CPU = torch.device("cpu")


class Data(NamedTuple):
    """Labels (N,), dense (N, 13) and rows in the tables (26, N), of N inputs."""

    labels: np.ndarray[Any, Any]
    dense: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]

    def batches(self, order: np.ndarray[Any, Any]) -> list[Batch]:
        """Batches of these inputs, in this order."""
        return [
            make_batch(self.labels[part], self.dense[part], self.ids[:, part])
            for part in np.split(order, range(BATCH, len(order), BATCH))
        ]


def make_data(seed: int, first: int, count: int) -> Data:
    """Chunks of made-up inputs, the same for the same seed and numbers."""
    generator = Generator(table_rows(ROWS_SCALE), seed)
    chunks = [generator.chunk(number) for number in range(first, first + count // CHUNK)]
    labels, dense, ids = zip(*chunks, strict=True)
    return Data(np.concatenate(labels), np.concatenate(dense), np.concatenate(ids, axis=1))


def read_data(files: list[Path], count: int) -> tuple[Data, Data]:
    """So many lines of Criteo's files to train on, at most, and a quarter as many to judge."""
    train, judged = split(files)
    return _read(train, count), _read(judged, count // 4)


def _read(part: list[Any], most: int) -> Data:
    labels, dense, ids, count = [], [], [], 0
    for batch in CriteoBatches(part, table_rows(ROWS_SCALE), BATCH):
        labels.append(batch.labels.numpy())
        dense.append(batch.dense_features.numpy())
        ids.append(
            batch.sparse_features.values().numpy().reshape(len(batch.sparse_features.keys()), -1)
        )
        count += len(labels[-1])
        if count >= most:
            break
    return Data(np.concatenate(labels), np.concatenate(dense), np.concatenate(ids, axis=1))


def build(seed: int, sharder: EmbeddingBagCollectionSharder) -> DistributedModelParallel:
    """The model, from the same weights for the same seed."""
    torch.manual_seed(seed)
    meta = torch.device("meta")
    net = build_dlrm(table_rows(ROWS_SCALE), DIM, bottom=(64,), top=(128, 64, 1), table_device=meta)
    tables = net.sparse_arch.embedding_bag_collection
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": LR})
    return shard(net, CPU, sharder)


@torch.no_grad()
def judge(model: DistributedModelParallel, batches: Iterable[Batch]) -> tuple[float, float]:
    """Mean loss, and area under the ROC curve."""
    model.eval()
    parts = [model(batch)[1] for batch in batches]
    model.train()
    logits = torch.cat([logits.detach() for _, logits, _ in parts])
    labels = torch.cat([labels for _, _, labels in parts])
    return (
        statistics.fmean(float(loss) for loss, _, _ in parts),
        float(binary_auroc(logits, labels.int())),
    )


def train(
    model: DistributedModelParallel,
    batches: Iterable[Batch],
    epochs: int,
    each: Callable[[], None] = lambda: None,
) -> int:
    """Train, and return how many batches were pure."""
    optimizer = build_optimizer(model, LR)
    pure_count = 0
    for _ in range(epochs):
        for batch in batches:
            mark = read_mark(batch.sparse_features)
            pure_count += mark is not None and mark.pure
            optimizer.zero_grad()
            loss: Tensor = model(batch)[0]
            loss.backward()
            optimizer.step()
            each()
    return pure_count


class Study:
    """One seed: the data, and what the four ways come to."""

    def __init__(
        self, seed: int, input_count: int, epochs: int, files: list[Path] | None = None
    ) -> None:
        self.seed, self.epochs = seed, epochs
        if files:
            self.data, unseen = read_data(files, input_count)
        else:
            self.data = make_data(seed, 0, input_count)
            first = input_count // CHUNK
            unseen = make_data(seed, first, max(CHUNK, input_count // 4))
        batches = unseen.batches(np.arange(len(unseen.labels)))
        tested = max(1, len(batches) // 8)
        self.tested, self.judged = batches[:tested], batches[tested:] or batches
        tables = build_tables(table_rows(ROWS_SCALE), DIM)
        self.profile: FAEProfile = calibrate(
            self.order(0), tables=tables, hot_bytes=HOT_BYTES, margin=0, progress=False
        )

    def order(self, number: int) -> list[Batch]:
        """The inputs in a random order."""
        random = np.random.default_rng([self.seed, number])
        return self.data.batches(random.permutation(len(self.data.labels)))

    def shuffled(self, order: int = 1) -> dict[str, Any]:
        """TorchRec's own sharder."""
        model = build(self.seed, EmbeddingBagCollectionSharder())
        train(model, self.order(order), self.epochs)
        return {"auc": judge(model, self.judged)[1]}

    def overlay(self) -> dict[str, Any]:
        """Packed batches in random order."""
        model = build(self.seed, FAEEmbeddingBagCollectionSharder(self.profile))
        packed = pack(self.order(1), self.profile, seed=self.seed)
        pure = train(model, packed, self.epochs)
        return {"auc": judge(model, self.judged)[1], "pure_steps": pure}

    def paper(self) -> dict[str, Any]:
        """Hot and cold copies, in runs by the test loss."""
        model = build(self.seed, FAEEmbeddingBagCollectionSharder(self.profile, mode="paper"))
        scheduler, order = ShuffleScheduler(), self.order(1)
        packed = pack(order, self.profile, scheduler=scheduler, window=len(order), seed=self.seed)

        def report() -> None:
            if scheduler.is_due:
                scheduler.report(judge(model, self.tested)[0])

        pure = train(model, packed, self.epochs, report)
        last = scheduler.history[-1]
        auc = judge(model, self.judged)[1]
        return {"auc": auc, "pure_steps": pure, "swaps": last.swaps, "rate": last.rate}

    def results(self) -> dict[str, Any]:
        """All four."""
        return {
            "shuffled": self.shuffled(),
            "again": self.shuffled(2),
            "overlay": self.overlay(),
            "paper": self.paper(),
        }


def differences(studies: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """How far the AUC of a way is from that of shuffled training, over the seeds."""
    found = [one[way]["auc"] - one["shuffled"]["auc"] for one in studies]
    return {
        "of_each_seed": [round(value, 5) for value in found],
        "mean": round(statistics.fmean(found), 5),
        "of_mean_aucs_within_0.001": abs(statistics.fmean(found)) <= 0.001,
        "of_each_seed_within_0.001": all(abs(value) <= 0.001 for value in found),
        "standard_error": round(statistics.stdev(found) / len(found) ** 0.5, 5)
        if len(found) > 1
        else None,
    }


def alone() -> None:
    """Be the only rank."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    store = Path(tempfile.mkdtemp()) / "store"
    dist.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    warnings.simplefilter("ignore")


def main() -> None:
    """Train, print, and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few inputs; writes nothing")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=128 * CHUNK, help="to train on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--data", type=Path, nargs="+", help="Criteo's train.txt, or day files")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(2)
    alone()
    seeds, inputs = (1, 16 * CHUNK) if options.quick else (options.seeds, options.inputs)
    results: dict[str, Any] = {
        "machine": host_facts(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
        "settings": {"inputs": inputs, "epochs": options.epochs, "batch": BATCH, "dim": DIM},
        "data": [path.name for path in options.data or ()],
        "seeds": [],
    }
    for seed in range(seeds):
        begin = time.perf_counter()
        study = Study(seed, inputs, options.epochs, options.data)
        results["seeds"].append(study.results())
        seconds = time.perf_counter() - begin
        print(f"seed {seed}, {seconds:.0f} s:", json.dumps(results["seeds"][-1]), flush=True)
    for way in ("again", "overlay", "paper"):
        results[way] = differences(results["seeds"], way)
        print(f"{way} less shuffled:", json.dumps(results[way]))
    if not options.quick:
        kind = "fae-auc-criteo" if options.data else "fae-auc"
        path = RESULTS / f"{kind}-{results['date']}.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"written: {path}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
