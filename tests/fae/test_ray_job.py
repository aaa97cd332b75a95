"""The Ray Data job against the calibration of a loader, in a real Ray of two CPUs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from types import ModuleType

import numpy as np
import pyarrow
import pytest
import torch
from numpy.testing import assert_array_equal
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.skewed import KEYS, ROWS, matrix, tables
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import calibrate, calibrate_dataset
from trainobs.fae.calibration.ray_job import _column

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # Ray's own
BUDGET = 20_000
COUNT = 30_000


@pytest.fixture(scope="module")
def ray_data() -> Iterator[ModuleType]:
    """Ray's data sets, in a Ray that has started."""
    import ray
    import ray.data

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets take no long path
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        _temp_dir=folder,
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=200 << 20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data
    ray.shutdown()
    del os.environ["RAY_USAGE_STATS_ENABLED"]
    shutil.rmtree(folder)


def same(one, other):
    assert one.fingerprint == other.fingerprint
    for name in ("all_hot_ratio", "hot_lookup_ratio", "hot_bytes_per_input", "threshold"):
        assert repr(getattr(one.predictions, name)) == repr(getattr(other.predictions, name))
    for name, table in one.predictions.tables.items():
        assert_array_equal(table.group_rows, other.predictions.tables[name].group_rows)
        assert_array_equal(table.group_ratios, other.predictions.tables[name].group_ratios)
    assert {**one.made, "source": ""} == {**other.made, "source": ""}


def ragged():
    """Multi-hot inputs as rows of lists, and as one KeyedJaggedTensor."""
    random = np.random.default_rng(0)
    rows = [
        {
            "number": n,
            **{
                k: (random.pareto(0.8, random.integers(0, 4)) % r).astype(np.int64)
                for k, r in zip(KEYS, ROWS, strict=True)
            },
        }
        for n in range(6000)
    ]
    parts = [[row[key] for row in rows] for key in KEYS]
    kjt = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.from_numpy(np.concatenate([np.concatenate(part) for part in parts])),
        lengths=torch.tensor([len(each) for part in parts for each in part]),
    )
    return rows, kjt


def test_the_result_is_that_of_a_loader_bit_for_bit(ray_data):
    ids = matrix(0, COUNT)
    order = np.random.default_rng(1).permutation(COUNT)  # blocks come as they like anyway
    columns = {f"column_{key}": row[order] for key, row in zip(KEYS, ids, strict=True)}
    blocks = [
        {"number": order[part], **{name: column[part] for name, column in columns.items()}}
        for part in np.array_split(np.arange(COUNT), 7)
    ]
    dataset = ray_data.from_arrow([pyarrow.table(block) for block in blocks])
    by_ray = calibrate_dataset(
        dataset,
        tables(),
        BUDGET,
        input_id="number",
        columns={key: f"column_{key}" for key in KEYS},
        workers=2,
    )
    batch = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.from_numpy(ids.ravel()),
        lengths=torch.ones(ids.size, dtype=torch.int32),
    )
    same(by_ray, calibrate([batch], tables(), BUDGET, margin=0, progress=False))


def test_lists_of_ids_are_multi_hot_inputs(ray_data):
    rows, kjt = ragged()
    by_ray = calibrate_dataset(ray_data.from_items(rows), tables(), BUDGET, input_id="number")
    same(by_ray, calibrate([kjt], tables(), BUDGET, margin=0, progress=False))


def test_tables_without_a_counter_for_each_row_are_added_up_too(ray_data):
    rows = (*ROWS[:2], 3_000_000)
    ids = matrix(0, COUNT, rows)
    columns = dict(zip(KEYS, ids, strict=True))
    dataset = ray_data.from_arrow(pyarrow.table({"number": np.arange(COUNT), **columns}))
    by_ray, whole = (
        calibrate_dataset(dataset, tables(rows), BUDGET, input_id="number", memory=memory)
        for memory in ("4MB", "2GiB")
    )
    same(by_ray, whole)


ON_ONE_CPU = """
import os, sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from tests.fae.skewed import KEYS, matrix, tables
from trainobs.fae import calibrate_dataset

ray.init(_temp_dir=sys.argv[1], num_cpus=1, include_dashboard=False, object_store_memory=100 << 20)
rows = [{"number": n, **dict(zip(KEYS, ids))} for n, ids in enumerate(matrix(0, 2000).T.tolist())]
for workers in (1, 2):
    profile = calibrate_dataset(
        ray.data.from_items(rows), tables(), 20_000, input_id="number", workers=workers
    )
    print("inputs read by", workers, "workers:", profile.made["inputs_read"])
"""


def test_counters_leave_a_cluster_of_one_cpu_to_what_reads_for_them():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    command = [sys.executable, "-c", ON_ONE_CPU, folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for workers in (1, 2):
        assert f"inputs read by {workers} workers: 2000" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("row", "kind", "found"),
    [
        ({"small": 40}, FAEError, "table 't_small'\n  found: id 40"),
        ({"number": None}, SettingError, "no column 'number'"),
    ],
    ids=["outside", "no id"],
)
def test_data_that_do_not_fit_say_what_is_wrong(ray_data, row, kind, found):
    whole = {"number": 0, **dict.fromkeys(KEYS, 1), **row}
    whole = {name: value for name, value in whole.items() if value is not None}
    with pytest.raises(kind, match=found):
        calibrate_dataset(ray_data.from_items([whole] * 200), tables(), BUDGET, input_id="number")


def test_columns_that_are_no_integers_are_refused():
    with pytest.raises(FAEError, match="column 'large' holds float64"):
        _column(np.array([1.0, np.nan]), "large")
    lists = np.empty(2, dtype=object)
    lists[:] = [np.array([1.5]), np.array([], dtype=np.int64)]
    with pytest.raises(FAEError, match="column 'large' holds float64"):
        _column(lists, "large")
    lists[:] = [None, np.array([1])]
    with pytest.raises(FAEError, match="column 'large' holds bool, not integers\n"):
        _column(np.array([True, False]), "large")
    for odd, found in ((["7", "8"], "str"), ([Decimal(7), Decimal(8)], "Decimal")):
        with pytest.raises(FAEError, match=f"column 'large' holds {found}"):
            _column(np.array(odd, dtype=object), "large")
    with pytest.raises(FAEError, match="column 'large' holds None"):
        _column(lists, "large")
    lists[:] = [np.array([1, None]), np.array([1])]
    with pytest.raises(FAEError, match="column 'large' holds object"):
        _column(lists, "large")


def test_a_column_of_lists_of_one_length_is_multi_hot_too():
    ids, lengths = _column(np.array([[1, 2], [3, 4]]), "large")
    assert_array_equal(ids, [1, 2, 3, 4])
    assert_array_equal(lengths, [2, 2])
