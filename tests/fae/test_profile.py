"""The profile: slots, what it refuses, and its file."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.fae.skewed import Batches, matrix, tables
from trainobs.core.errors import FAEError
from trainobs.core.quotients import Interval
from trainobs.fae import FAEProfile, TableProfile, calibrate, pack
from trainobs.fae.profile.archive import ArchiveKind, write_archive
from trainobs.fae.profile.profile import warn_of_unused


def hot(name="t", ids=(1, 3), rows=10, dim=4):
    return TableProfile(name, rows, dim, (f"f_{name}",), np.array(ids, dtype=np.int64), 20)


@pytest.fixture
def profile():
    return FAEProfile((hot("a"), hot("b", ids=(0,))), 100, made={"seed": 3})


def test_slots_are_positions_among_the_hot_rows(profile):
    assert_array_equal(profile.slots("a"), [-1, 0, -1, 1, -1, -1, -1, -1, -1, -1])
    assert profile.slots("a") is profile.slots("a")
    assert profile.slots("a").dtype == np.int32


def test_hot_bytes_are_those_of_all_tables(profile):
    assert profile.hot_bytes == 3 * 20


@pytest.mark.parametrize(
    "ids", [(3, 1), (1, 1), (-1, 2), (1, 10)], ids=["unordered", "twice", "negative", "beyond"]
)
def test_hot_ids_that_are_no_ascending_rows_are_refused(ids):
    with pytest.raises(FAEError, match=r"table 't'\n  found: .*\n  do:    "):
        hot(ids=ids)


def test_hot_ids_as_floats_are_refused():
    # The artifact of the paper kept them as float32: 16777217 becomes the row of another.
    with pytest.raises(FAEError, match="float32"):
        TableProfile("t", 1 << 25, 4, ("f",), np.array([16777217], dtype=np.float32), 20)


@pytest.mark.parametrize(
    "field",
    [
        {"name": 3},
        {"row_count": "10"},
        {"row_count": 10.0},
        {"dim": 0},
        {"dim": True},
        {"features": "user"},
        {"features": ("user", 7)},
        {"row_bytes": -1},
        {"row_bytes": None},
    ],
    ids=str,
)
def test_fields_of_another_kind_are_refused_where_they_are_given(field):
    ids = np.array([1, 3], dtype=np.int64)
    good = dict(name="t", row_count=10, dim=4, features=("f",), hot_ids=ids, row_bytes=20)
    with pytest.raises(FAEError, match=r"cannot make hot rows of table .*\n  found: .*\n  do:    "):
        TableProfile(**good | field)


def test_a_table_may_have_no_rows():
    TableProfile("t", 0, 1, ("f",), np.empty(0, np.int64), 0)


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(FAEError, match=r"tables of one name: \['a'\]"):
        FAEProfile((hot("a"), hot("a")), 100)


def test_the_fingerprint_changes_with_tables_and_hot_rows_only():
    def fingerprint(budget=100, **table):
        return FAEProfile((hot(**table),), budget).fingerprint

    others = [{"ids": (1, 4)}, {"name": "u"}, {"rows": 11}, {"dim": 8}]
    prints = [fingerprint(), *(fingerprint(**other) for other in others)]
    assert len(set(prints)) == len(prints)
    assert fingerprint(budget=200) == fingerprint()
    assert len(fingerprint()) == 16


def test_a_pickled_profile_is_the_same_without_its_slots(profile):
    profile.slots("a")
    copy = pickle.loads(pickle.dumps(profile))
    assert copy.fingerprint == profile.fingerprint
    assert copy._slots == {}
    assert_array_equal(copy.slots("a"), profile.slots("a"))


def test_a_calibrated_profile_comes_back_from_its_file_as_it_was(tmp_path):
    made = calibrate(Batches(matrix(0, 30_000)), tables(), "40kB", margin=0, progress=False)
    made.save(tmp_path / "profile")
    back = FAEProfile.load(tmp_path / "profile")
    assert back.fingerprint == made.fingerprint
    assert (back.budget_bytes, back.made) == (made.budget_bytes, made.made)
    for name, table in made.predictions.tables.items():
        assert_array_equal(back.predictions.tables[name].group_rows, table.group_rows)
        assert back.predictions.tables[name].hot_lookup_ratio == table.hot_lookup_ratio
    assert back.predictions.all_hot_ratio == made.predictions.all_hot_ratio
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "profile").read_bytes()


def test_a_profile_without_predictions_comes_back_too(profile, tmp_path):
    profile.save(tmp_path / "profile")
    back = FAEProfile.load(tmp_path / "profile")
    assert back.predictions is None
    assert back.made == {"seed": 3}


def test_every_cut_of_the_file_is_refused(profile, tmp_path):
    profile.save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(FAEError, match=r"found: .*\n  do:    .*calibrate again"):
            FAEProfile.load(tmp_path / "cut")


def test_every_changed_byte_of_the_content_is_refused(profile, tmp_path):
    profile.save(tmp_path / "whole")
    data = bytearray((tmp_path / "whole").read_bytes())
    with zipfile.ZipFile(tmp_path / "whole") as archive:
        contents = [
            (member.header_offset + 30 + len(member.filename) + 20, member.file_size)
            for member in archive.infolist()
        ]
    for start, size in contents:
        for at in range(start, start + size, 41):
            changed = bytearray(data)
            changed[at] ^= 0x10
            (tmp_path / "changed").write_bytes(changed)
            with pytest.raises(FAEError, match="cannot read the FAE profile"):
                FAEProfile.load(tmp_path / "changed")


@pytest.mark.parametrize("field", [6, 8], ids=["encrypted", "compressed otherwise"])
def test_a_member_that_the_zip_cannot_open_is_refused(profile, tmp_path, field):
    profile.save(tmp_path / "whole")
    data = bytearray((tmp_path / "whole").read_bytes())
    with zipfile.ZipFile(tmp_path / "whole") as archive:
        directory = archive.start_dir
        at = archive.infolist()[0].header_offset
    data[at + field] ^= 0x01  # in the member's own header, and in the directory's
    data[directory + field + 2] ^= 0x01
    (tmp_path / "changed").write_bytes(data)
    with pytest.raises(FAEError, match="cannot read the FAE profile"):
        FAEProfile.load(tmp_path / "changed")


def test_a_change_that_the_zip_does_not_notice_is_refused_by_the_checksum(profile, tmp_path):
    profile.save(tmp_path / "whole")
    members = dict(np.load(tmp_path / "whole"))
    members["array-0"] = np.array([1, 4])
    np.savez(tmp_path / "other", **members)
    with pytest.raises(FAEError, match="the checksum does not fit"):
        FAEProfile.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("kind", "schema", "found"),
    [("FAE profile", 99, "layout 99"), ("shopping list", 1, "a shopping list")],
)
def test_what_another_version_or_program_wrote_is_refused(tmp_path, kind, schema, found):
    write_archive(tmp_path / "other", ArchiveKind(kind, schema, ""), {}, {})
    with pytest.raises(FAEError, match=found):
        FAEProfile.load(tmp_path / "other")


@pytest.mark.parametrize(
    "facts",
    [
        {"tables": 3},
        {"tables": [["a", 10.0, 4, [], 20, False]]},
        {"tables": [["a", 10, 4, [7], 20, False]]},
        {"tables": [["a", 10, 4, [], None, False]]},
        {"tables": [["a", 10, 4, [], 20, "no"]]},
        {"tables": [["b" * 2, 10, 4, [], 20, False]] * 2},
        {"made": []},
        {"budget_bytes": "100"},
        {"predictions": {"confidence": "0.9"}},
    ],
)
def test_a_sound_file_with_facts_of_another_kind_is_refused(tmp_path, facts):
    sound = {"tables": [], "budget_bytes": 1, "made": {}, "predictions": None}
    ids = np.array([1], np.int64)
    kind = ArchiveKind("FAE profile", 1, "")
    write_archive(tmp_path / "other", kind, sound | facts, {"hot-ids-0": ids, "hot-ids-1": ids})
    with pytest.raises(FAEError):
        FAEProfile.load(tmp_path / "other")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(tmp_path, make):
    make(tmp_path / "profile")
    with pytest.raises(FAEError, match="not a regular file"):
        FAEProfile.load(tmp_path / "profile")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FAEError, match="no such file"):
        FAEProfile.load(tmp_path / "nothing")


def test_saving_where_that_is_impossible_leaves_nothing(profile, tmp_path):
    with pytest.raises(OSError, match="No such file or directory"):
        profile.save(tmp_path / "missing" / "profile")
    with pytest.raises(OSError, match=r"missing/profile[^>]*$"):
        profile.save(tmp_path / "missing" / "profile")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_nothing_but_a_file_is_replaced(profile, tmp_path, make):
    make(tmp_path / "profile")
    kind = (tmp_path / "profile").lstat().st_mode
    with pytest.raises(OSError, match="not a regular file"):
        profile.save(tmp_path / "profile")
    assert [path.lstat().st_mode for path in tmp_path.iterdir()] == [kind]


def test_a_profile_shows_itself_in_a_line(profile):
    assert repr(profile).startswith(f"<FAEProfile {profile.fingerprint}: ")
    assert len(repr(profile)) < 80


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"keys": ("small", "middle", "other")}, "table 't_other'"),
        ({"rows": (40, 3000, 20_001)}, "rows 20001, calibrated with 20000"),
        ({"dim": 8}, "dimension 8, calibrated with 4"),
    ],
)
def test_a_profile_of_another_model_is_refused(change, found):
    made = calibrate(Batches(matrix(0, 10_000)), tables(), "40kB", progress=False)
    made.check(tables())
    made.check(tables()[:1])  # one of several collections
    with pytest.raises(FAEError, match=f"{found}.*\n  do:    calibrate again"):
        made.check(tables(**change))
    renamed = tables()
    renamed[0].feature_names = ["another"]
    with pytest.raises(FAEError, match="features"):
        made.check(renamed)
    with pytest.raises(FAEError, match="the profile has none"):
        FAEProfile((), 1 << 20).check(tables())


def test_the_summary_tells_what_is_hot_and_expected(profile):
    made = calibrate(Batches(matrix(0, 30_000)), tables(), "20kB", margin=0, progress=False)
    lines = made.summary().splitlines()
    assert lines[0] == f"FAE profile {made.fingerprint}"
    told = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines[1:])
    assert told["tables"] == "3, 1 of them wholly hot"
    assert told["memory"] == "20 kB of 20 kB"
    share = made.predictions.all_hot_ratio
    assert told["inputs all hot"].startswith(f"{100 * share.value:.1f} % ({100 * share.low:.1f} to")
    assert told["least so"].startswith("t_large")
    assert "lookups in a million inputs" in told["threshold"]
    large = replace(made.predictions, threshold=Interval(17_300.0, 9_000.0, 26_300.0)).summary()
    assert large["threshold"].startswith("17.3 k lookups in a million inputs (9 k to 26.3 k, with")
    left = made.predictions.without(["t_large"]).summary()
    assert " in a million inputs (" in left["threshold"]
    assert "unknown" not in left["threshold"]
    assert profile.summary().splitlines()[1:] == [
        "  hot rows  3 of 20",
        "  tables    2, 0 of them wholly hot",
        "  memory    60 B of 100 B",
    ]


def test_hot_rows_that_no_batch_can_tell_apart_are_told(caplog):
    """As in a profile made of two that have a feature of one name."""
    rows = np.array([0, 2, 4]), np.array([1, 2, 3]), np.array([5])
    tables = tuple(
        TableProfile(name, 10, 4, tuple(features), ids, 20)
        for name, features, ids in zip("abc", ("fg", "gh", "i"), rows, strict=True)
    )
    merged = FAEProfile(tables, 1000)
    assert merged.overlaid == {"c"}
    assert "left out  a, b, which share features and differ" in merged.summary()
    pack([], merged)
    assert "hot rows of a, b are not used" in caplog.text
    caplog.clear()
    warn_of_unused(merged, "abc")  # as the sharder does: it was told
    warn_of_unused(merged, "c")
    assert caplog.records == []
