"""Measure FAE's work on the host: `python benchmarks/fae_cpu.py [--quick] [--only NAME]`.

Inputs are Criteo-like: 26 lookups each, in tables of Criteo Kaggle's 26 sizes. How often a row is
looked up falls with its rank as a power law; hot rows are scattered over the table, as hashing
leaves them. Two cores are used, however many there are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fae_pack import measure_pack
from fae_rows import measure_rows
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae import FAEProfile, calibrate
from trainobs.fae.calibration.predict import served
from trainobs.fae.kjt.find import inputs_of
from trainobs.fae.profile.model_tables import tables_of
from trainobs.host.facts import host_facts

# fmt: off
ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on
DIM = 16
BATCH = 2048
HOT_BYTES = "256MiB"
RESULTS = Path(__file__).parent / "results"


class CriteoLike:
    """A loader of `count` batches, made beforehand.

    Args:
        count: of batches.
        slope: of the logarithm of a row's lookups over that of its rank.
    """

    def __init__(self, count: int, slope: float = 1.05) -> None:
        random = np.random.default_rng(0)
        self.keys = [f"C{i + 1}" for i in range(len(ROWS))]
        self.tables = [
            EmbeddingBagConfig(
                name=f"t_{key}", num_embeddings=rows, embedding_dim=DIM, feature_names=[key]
            )
            for key, rows in zip(self.keys, ROWS, strict=True)
        ]
        columns = [_ids(random, rows, count * BATCH, slope) for rows in ROWS]
        ids = np.stack(columns).reshape(len(ROWS), count, BATCH).swapaxes(0, 1)
        lengths = torch.ones(len(ROWS) * BATCH, dtype=torch.int32)
        self.batches = [
            KeyedJaggedTensor(
                keys=self.keys, values=torch.from_numpy(part.ravel()), lengths=lengths
            )
            for part in np.ascontiguousarray(ids)
        ]

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def input_count(self) -> int:
        """Inputs of all batches."""
        return len(self.batches) * BATCH


def _ids(random: np.random.Generator, rows: int, count: int, slope: float) -> np.ndarray:
    """Power law over ranks by its inverse, ranks scattered by a multiplication."""
    power = 1.0 - slope
    ranks = (1.0 + random.random(count) * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks = np.minimum(ranks.astype(np.int64) - 1, rows - 1)
    step = next(s for s in range(max(1, int(rows * 0.618)), rows + 2) if np.gcd(s, rows) == 1)
    return ranks * step % rows


def measure_calibrate(data: CriteoLike, rounds: int) -> dict[str, Any]:
    """All inputs read, counted or held out, rows chosen, predictions made."""

    def run() -> FAEProfile:
        return calibrate(data, data.tables, HOT_BYTES, margin=0, progress=False)

    profile = run()
    found = _rate(run, data.input_count, rounds)
    return found | {
        "hot_bytes": profile.hot_bytes,
        "all_hot_ratio": round(profile.predictions.all_hot_ratio.value, 4),
        "hot_lookup_ratio": round(profile.predictions.hot_lookup_ratio.value, 4),
    }


def measure_judge(data: CriteoLike, rounds: int) -> dict[str, Any]:
    """Which inputs are all hot: what a calibration asks of the inputs it held out."""
    tables = tables_of(data.tables)
    profile = calibrate(data, data.tables, HOT_BYTES, margin=0, progress=False)
    hot = {table.name: table.hot_ids for table in profile.tables}
    batches = [inputs_of(batch, data.keys) for batch in data.batches]
    joined_ids = tuple(
        np.concatenate(column) for column in zip(*(b.ids for b in batches), strict=True)
    )
    inputs = batches[0]._replace(size=data.input_count, ids=joined_ids)
    return _rate(lambda: served(tables, hot, inputs), data.input_count, rounds)


def measure_packing(data: CriteoLike, rounds: int) -> dict[str, Any]:
    """Inputs sorted into pure and mixed batches, hot lookups apart."""
    profile = calibrate(data, data.tables, HOT_BYTES, margin=0, progress=False)
    return measure_pack(data.batches, profile, rounds)


def measure_write_back(data: CriteoLike, rounds: int) -> dict[str, Any]:
    """Hot rows read from their tables and written back, weights and row-wise Adagrad's state."""
    profile = calibrate(data, data.tables, HOT_BYTES, margin=0, progress=False)
    return measure_rows(data.tables, profile, rounds)


MEASUREMENTS: dict[str, Callable[[CriteoLike, int], dict[str, Any]]] = {
    "calibrate": measure_calibrate,
    "judge": measure_judge,
    "pack": measure_packing,
    "write_back": measure_write_back,
}


def _rate(run: Callable[[], object], inputs: int, rounds: int) -> dict[str, Any]:
    """Inputs a second of several rounds, and a CPU second: what others do disturbs that less."""
    rates, cpu_rates = [], []
    for _ in range(rounds):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        run()
        rates.append(inputs / (time.perf_counter() - begin))
        cpu_rates.append(inputs / (time.process_time() - cpu_begin))
    return {
        "inputs": inputs,
        "rounds": rounds,
        "inputs_per_second": round(statistics.median(rates)),
        "slowest": round(min(rates)),
        "fastest": round(max(rates)),
        "inputs_per_cpu_second": round(statistics.median(cpu_rates)),
    }


def main() -> None:
    """Measure, print, and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer inputs; writes no results")
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="only this one")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(2)
    data = CriteoLike(64 if arguments.quick else 1024)
    results: dict[str, Any] = {
        "machine": host_facts(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
    }
    for name in arguments.only or MEASUREMENTS:
        results[name] = MEASUREMENTS[name](data, 1 if arguments.quick else 5)
        print(name, json.dumps(results[name]), flush=True)
    if not (arguments.quick or arguments.only):
        path = RESULTS / f"fae-cpu-{results['date']}.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
