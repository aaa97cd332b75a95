"""The names in a run directory."""

from __future__ import annotations

from tests.samples import part_files
from trainobs.runlog.schema import KERNEL, STEPS, part_file, ranks, run_file


def test_a_missing_part_is_listed_so_that_it_is_noticed(tmp_path):
    (tmp_path / "rank=0").mkdir()
    for number in (0, 1, 3):
        part_file(tmp_path, 0, STEPS, number).touch()
    (tmp_path / "rank=0" / ".steps-00007.parquet.tmp").touch()
    (tmp_path / "rank=0" / "steps-old.parquet").touch()
    expected = [part_file(tmp_path, 0, STEPS, number) for number in range(4)]
    assert part_files(tmp_path, 0, STEPS) == expected
    assert part_files(tmp_path, 0, KERNEL) == []


def test_parts_stay_in_order_when_their_numbers_grow(tmp_path):
    (tmp_path / "rank=0").mkdir()
    part_file(tmp_path, 0, STEPS, 100_001).touch()
    assert part_files(tmp_path, 0, STEPS)[-1].name == "steps-100001.parquet"


def test_a_number_that_no_writer_gives_does_not_make_a_list_of_that_length(tmp_path):
    (tmp_path / "rank=0").mkdir()
    part_file(tmp_path, 0, STEPS, 99_999_999_999).touch()
    assert [path.name for path in part_files(tmp_path, 0, STEPS)] == [
        "steps-99999999998.parquet",
        "steps-99999999999.parquet",
    ]


def test_ranks_are_numbers_not_text(tmp_path):
    for name in ("rank=10", "rank=2", "rank=x", "tensorboard"):
        (tmp_path / name).mkdir()
    (tmp_path / "rank=3").touch()
    assert ranks(tmp_path) == [2, 10]


def test_every_rank_has_a_run_file_of_its_own(tmp_path):
    assert run_file(tmp_path, 0) == tmp_path / "run.json"
    assert run_file(tmp_path, 2) == tmp_path / "rank=2" / "rank.json"
