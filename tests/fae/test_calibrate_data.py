"""What loaders yield, and what is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.skewed import (
    BUDGET,
    KEYS,
    ROWS,
    Batches,
    click_loader,
    kjt,
    matrix,
    quiet,
    tables,
)
from trainobs.core import errors
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import calibrate, measure
from trainobs.fae.calibration import source
from trainobs.fae.calibration.source import InputSource
from trainobs.fae.kjt.inputs import blocks_of, keys_of, parts_of
from trainobs.fae.profile.arguments import byte_count, told_bytes


def test_multi_hot_inputs_are_counted_lookup_by_lookup():
    random = np.random.default_rng(0)
    lengths = random.integers(0, 4, (3, 8000))
    ids = [
        np.minimum(random.pareto(0.7, lengths[i].sum()).astype(np.int64), ROWS[i] - 1)
        for i in range(3)
    ]
    batch = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.from_numpy(np.concatenate(ids)).to(torch.int32),
        lengths=torch.from_numpy(lengths.ravel()),
        weights=torch.ones(int(lengths.sum())),
    )
    profile = quiet([batch], margin=0)
    counted = parts_of(keys_of(blocks_of(np.arange(8000)), 0)) < 2
    reporting = parts_of(keys_of(blocks_of(np.arange(8000)), 0)) == 3
    cold = np.zeros(8000)
    for i, table in enumerate(profile.tables):
        counts = np.bincount(ids[i][np.repeat(counted, lengths[i])], minlength=ROWS[i])
        if i:
            coldest = np.setdiff1d(np.arange(ROWS[i]), table.hot_ids)
            assert counts[table.hot_ids].min() >= counts[coldest].max()
        owner = np.repeat(np.arange(8000), lengths[i])
        np.add.at(cold, owner, profile.slots(table.name)[ids[i]] < 0)
        held = lengths[i][reporting].mean()
        assert profile.predictions.tables[table.name].lookups_per_input == pytest.approx(held)
    assert profile.predictions.input_count == reporting.sum()
    assert profile.predictions.all_hot_ratio.value == pytest.approx((cold == 0)[reporting].mean())


def test_a_loader_tells_how_many_inputs_there_are_or_nobody_knows():
    ids = matrix(0, 1000)
    assert input_count(click_loader(ids)) == 1000
    assert input_count(Batches(ids)) is None
    in_batches = Batches(ids)
    in_batches.batch_size = 256
    assert input_count(in_batches) == 4 * 256
    assert input_count(iter(in_batches)) is None
    assert input_count(Stream(ids)) is None


class Stream(Batches):
    batch_size = 256

    def __len__(self):
        raise NotImplementedError


def input_count(loader):
    return InputSource(loader, KEYS, None, 0, None).input_count


def test_bytes_spared_are_those_of_hot_weights():
    ids = matrix(0, 8000)
    profile = quiet(Batches(ids), margin=0)
    expected = profile.predictions
    assert expected.bytes_per_input == 3 * 16
    assert expected.hot_bytes_per_input.value == pytest.approx(48 * expected.hot_lookup_ratio.value)


def test_a_table_that_two_features_lookup_is_counted_for_both():
    shared = tables(rows=(3000,), keys=("small",))
    shared[0].feature_names = ["small", "middle"]
    ids = matrix(0, 8000)
    profile = quiet(Batches(ids % 3000), of=shared, margin=0)
    counted = parts_of(keys_of(blocks_of(np.arange(8000)), 0)) < 2
    counts = np.bincount((ids % 3000)[:2, counted].ravel(), minlength=3000)
    cold = np.setdiff1d(np.arange(3000), profile.tables[0].hot_ids)
    assert counts[profile.tables[0].hot_ids].min() >= counts[cold].max()
    assert profile.predictions.tables["t_small"].lookups_per_input == 2


@dataclasses.dataclass
class Nested:
    parts: tuple[torch.Tensor, dict[str, KeyedJaggedTensor]]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda kjt: kjt,
        lambda kjt: (torch.zeros(2), kjt),
        lambda kjt: {"label": torch.zeros(2), "sparse": kjt},
        lambda kjt: Batch(torch.zeros(2), kjt, torch.zeros(2)),
        lambda kjt: Nested((torch.zeros(2), {"a": kjt})),
    ],
    ids=["itself", "tuple", "dict", "torchrec", "nested"],
)
def test_lookups_are_found_in_whatever_a_loader_yields(wrap):
    ids = matrix(0, 8000)
    bare = quiet(Batches(ids), margin=0)
    assert quiet([wrap(kjt(ids))], margin=0).fingerprint == bare.fingerprint


def test_of_several_the_one_with_the_features_is_taken_or_the_one_named():
    ids = matrix(0, 8000)
    other = kjt(ids, keys=("x", "y", "z"))
    bare = quiet(Batches(ids), margin=0).fingerprint
    assert quiet([(other, kjt(ids))], margin=0).fingerprint == bare
    both = {"a": kjt(ids[:, ::-1].copy()), "b": [kjt(ids)]}
    assert quiet([both], margin=0, kjt=("b", 0)).fingerprint == bare
    with pytest.raises(SettingError, match=r"2, at \['a'\], \['b', 0\]\n  do:    name it"):
        quiet([both])
    with pytest.raises(SettingError, match=r"at \['c'\]\n  found: NoneType there"):
        quiet([both], kjt="c")


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (
            lambda ids: kjt(ids + 20_000),
            r"t_small.*\n  found: id 2\d{4} \(\d+ of \d+ are",
        ),
        (lambda ids: kjt(ids - 30), r"t_small.*\n  found: id -\d+ .*the table has 40 rows"),
        (lambda ids: kjt(ids.astype(np.float32)), "ids of float32\n  do:    make"),
        (lambda ids: kjt(ids % 2 > 0), "ids of bool\n  do:    make"),
        (lambda ids: kjt(ids[:2], KEYS[:2]), "no feature 'large'"),
        (lambda ids: torch.zeros(3), "no KeyedJaggedTensor in Tensor"),
    ],
    ids=["beyond", "negative", "floats", "bools", "feature", "none"],
)
def test_batches_that_do_not_fit_say_what_is_wrong(batch, found):
    with pytest.raises(FAEError, match=found):
        quiet([batch(matrix(0, 2000))])


def test_a_bad_id_is_left_out_and_told_unless_it_is_to_be_fatal(caplog):
    ids = matrix(0, 20_000)
    as_it_is = quiet(Batches(ids), margin=0)
    bad = ids.copy()
    bad[2, 100] = ROWS[2]
    profile = quiet(Batches(bad), margin=0)
    assert profile.made["lookups_left_out"] == 1
    assert "1 of 20,000 lookups of feature 'large' left out" in caplog.text
    assert "ids outside of the 20000 rows of table 't_large', such as 20000" in caplog.text
    for table, other in zip(profile.tables, as_it_is.tables, strict=True):
        assert len(np.setxor1d(table.hot_ids, other.hot_ids)) <= 2
    for fatal in (BoundsCheckMode.FATAL, "FATAL", "fatal", BoundsCheckMode.V2_FATAL):
        with pytest.raises(
            FAEError, match="an id of feature 'large' is outside of table 't_large'"
        ):
            quiet(Batches(bad), margin=0, bounds_check_mode=fatal)


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["slow", "fast"])
@pytest.mark.parametrize("first", [0, 30_000])
def test_whether_most_ids_are_bad_does_not_depend_on_time(first, seconds, monkeypatch):
    monkeypatch.setattr(source, "LOT_SECONDS", seconds)  # a lot a batch, or a lot of all
    ids = matrix(0, 60_000)
    ids[2, first : first + 256] += ROWS[2]
    assert quiet(Batches(ids), margin=0).made["lookups_left_out"] == 256
    assert measure(quiet(Batches(matrix(0, 9000))), {"0": Batches(ids)})["0"].inputs == 60_000
    ids[2, first // 2 : first // 2 + 30_001] = ROWS[2]
    with pytest.raises(FAEError, match=r"found: id 20000 \(\d+ of \d+ are outside\)"):
        quiet(Batches(ids), margin=0)


@pytest.mark.parametrize("count", [90, 9000])
def test_few_data_of_which_most_are_bad_are_refused_too(count):
    found = rf"found: id 2\d{{4}} \({count} of {count} are outside\)"
    with pytest.raises(FAEError, match=found):
        quiet(Batches(matrix(0, count) + ROWS[2]), of=tables(ROWS[2:], KEYS[2:]))
    profile = quiet(Batches(matrix(0, 9000)), of=tables(ROWS[2:], KEYS[2:]))
    with pytest.raises(FAEError, match=found):
        measure(profile, {"0": Batches(matrix(0, count) + ROWS[2])})


def test_features_with_a_batch_size_of_their_own_are_refused():
    batch = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.tensor([0, 1, 2, 3]),
        lengths=torch.ones(4, dtype=torch.int32),
        stride_per_key_per_rank=[[1], [2], [1]],
    )
    with pytest.raises(FAEError, match=r"different numbers of inputs\n  found: .*\[1, 2, 1\]"):
        quiet([batch])


def test_an_error_in_a_worker_is_the_same_error():
    with pytest.raises(FAEError, match="no feature 'absent'"):
        quiet(
            click_loader(matrix(0, 2000)), of=tables(keys=("small", "middle", "absent")), workers=1
        )


def test_ids_beyond_what_a_float_holds_stay_exact():
    rows = (1 << 24) + 9
    odd = np.full(4000, (1 << 24) + 1)  # as float32 this is 2^24
    odd[::7] = np.arange(len(odd[::7]))
    profile = quiet([kjt(odd[None], ("k",))], of=tables((rows,), ("k",)), budget=100, margin=0)
    assert (1 << 24) + 1 in profile.tables[0].hot_ids
    assert 1 << 24 not in profile.tables[0].hot_ids


@pytest.mark.parametrize("inputs", [3, 2000])
def test_tables_that_fit_are_hot_as_a_whole_with_a_warning(inputs, caplog):
    profile = quiet(Batches(matrix(0, inputs)), budget="1MB")
    assert all(table.is_wholly_hot for table in profile.tables)
    assert "all rows will be hot\n  found: all 3 tables take" in caplog.text
    if inputs > 3:  # fewer are none that were held out
        assert profile.predictions.all_hot_ratio.value == 1


def test_nothing_is_said_of_hot_rows_where_an_error_comes(caplog):
    with pytest.raises(FAEError, match="no KeyedJaggedTensor in int"):
        quiet([1, 2, 3], budget="4GiB")
    assert caplog.text == ""


def test_what_was_given_in_gib_is_told_in_gib_and_one_table_as_one(caplog):
    one = tables(ROWS[:1], KEYS[:1])
    profile = quiet(Batches(matrix(0, 2000)), of=one, budget="4GiB")
    assert profile.tables[0].is_wholly_hot
    assert "found: the table takes " in caplog.text
    assert "hot_bytes is 4 GiB\n" in caplog.text
    assert [told_bytes(b) for b in (1 << 20, 3 << 29, 1_000_000)] == ["1 MiB", "1,536 MiB", "1 MB"]


@pytest.mark.parametrize("nothing", [[], ()], ids=str)
def test_no_tables_are_a_bad_value(nothing):
    with pytest.raises(SettingError, match="none in tables="):
        calibrate(Batches(matrix(0, 3)), nothing)


def test_a_profile_of_no_inputs_says_what_is_unknown():
    summary = quiet([], budget="1MB").summary()
    assert "  inputs all hot     unknown: there was nothing to judge by\n" in summary
    assert "  off the host link  unknown of unknown per input and way\n" in summary


def test_memory_is_told_before_it_is_taken(capsys):
    calibrate(Batches(matrix(0, 2000)), tables(), BUDGET, memory="64MB", progress=True)
    told = capsys.readouterr().err.splitlines()[0]
    assert told == (
        "calibrate: up to 93.9 MB of memory: 92.2 kB to count the lookups of 23.0 k rows, 26.7 MB "
        "for inputs held out, 67.1 MB for batches on their way, 16 kB for the numbers of hot rows"
    )


def test_without_a_progress_bar_the_log_tells_the_memory(caplog):
    with caplog.at_level("INFO", "trainobs"):
        quiet(Batches(matrix(0, 2000)))
    assert "calibrate: up to " in caplog.text


_TAKES = """
import re, sys, contextlib, io
from pathlib import Path
import numpy as np
from tests.fae.skewed import kjt, tables
from trainobs.fae import calibrate

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def told(rows, hot, memory, count):
    ids = (np.random.default_rng(0).random((1, count)) ** 3 * rows).astype(np.int64)
    loader = [kjt(ids[:, at : at + 8192], ("k",)) for at in range(0, count, 8192)]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS")
        calibrate(loader, tables((rows,), ("k",)), hot, memory=memory, margin=0, optimizer="sgd")
    return errors.getvalue().split("up to ")[1].split(" of")[0], status("VmHWM") - before

told(1000, 10_000, "1MB", 5000)  # what is imported, and kept, once
print(*told(*map(int, sys.argv[1:])), sep="\\n")
"""


@pytest.mark.parametrize(
    "memory",
    [100_000_000, 20_000_000],
    ids=["a counter a row", "hottest rows alone"],
)
def test_what_is_told_is_what_it_takes_at_most(memory):
    rows = 10_000_000  # all of them hot where there is a counter for each
    given = rows, rows * 16, memory, 1_000_000
    found = subprocess.run(
        [sys.executable, "-c", _TAKES, *map(str, given)], capture_output=True, text=True, check=True
    )
    told, took = found.stdout.split("\n")[:2]
    assert rows < int(took) <= byte_count(told, "told")


def test_rows_that_are_looked_up_equally_often_are_refused():
    random = np.random.default_rng(0)
    ids = np.stack([random.integers(0, rows, 60_000) for rows in ROWS])
    with pytest.raises(FAEError, match="nothing to gain from hot rows\n  found: of the lookups"):
        quiet(Batches(ids), margin=0.01)


def test_a_loader_without_data_is_refused():
    with pytest.raises(FAEError, match="found: no input was read\n  do:    give a loader of bat"):
        quiet([])


@pytest.mark.parametrize(
    "bad",
    [{"confidence": 1.0}, {"confidence": 0.2}, {"margin": -0.1}, {"margin": 0.5}, {"workers": 2}],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(bad):
    with pytest.raises(SettingError):
        quiet(Batches(matrix(0, 100)), **bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 << 30), ("512 MB", 512_000_000), ("1.5e3", 1500), (77, 77), ("2tib", 2 << 40)],
)
def test_sizes_are_read_as_people_write_them(text, expected):
    assert byte_count(text, "hot_bytes") == expected


@pytest.mark.parametrize("text", ["4G", "much", "", "-1", 0, -5, True, 1.5, "1.2.3MB", "."])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(SettingError, match="hot_bytes is no amount of memory"):
        quiet(Batches(matrix(0, 100)), budget=text)


def test_what_can_be_read_only_once_is_told_and_nothing_else(caplog):
    batches = list(click_loader(matrix(0, 2000)))
    loader = click_loader(matrix(0, 2000))
    for given in (batches, loader, Batches(matrix(0, 2000)), {"a": batches, "b": loader}):
        quiet(given)
        assert "may not come again" not in caplog.text
    for make in (lambda: (batch for batch in batches), lambda: iter(batches), lambda: iter(loader)):
        for given in (make(), {"a": batches, "b": make()}):
            caplog.clear()
            quiet(given)
            found = f"found: {errors.a_type(make())}, its own iterator"
            assert caplog.text.count(found) == 1
    caplog.clear()
    measure(quiet(batches), {"a": iter(batches)})
    assert caplog.text.count("give what makes it, such as the DataLoader") == 1
