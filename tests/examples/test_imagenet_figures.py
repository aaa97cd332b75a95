"""Figures and tables of a study of the ImageNet example: the numbers of its run logs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.analysis.runs import write
from tests.examples.conftest import IMAGENET, STUDY, grid_command
from tests.samples import busy_run
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue import METRICS
from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog

STEPS = 40


def observed(run_dir: Path, scale: float = 1.0, others: float = 0.125, **facts: object) -> None:
    """A run of two epochs of 20 steps with every number, as a busy loader makes them."""
    table = busy_run(STEPS)
    columns = {name: column * scale for name, column in table.columns.items()}
    columns["sched/others_cpu_ratio"] = np.full(STEPS, others)
    columns["io/checkpoint_write_bytes"] = np.full(STEPS, 1e6)  # in the step that saves, too
    epoch = (np.arange(STEPS) // 20).astype(np.int32)
    settings = {"loader_workers": 4, "torch": "2"}
    write(
        run_dir,
        replace(table, epoch=epoch, columns=columns),
        end={"outcome": "ok"},
        **{"settings": settings, **facts},
    )


def keep(
    study: SimpleNamespace,
    out: Path,
    cells: list[tuple],
    make: Callable[[Path, int], None],
    repeats: int = 3,
) -> None:
    """A study as run.py leaves it, of run logs that `make` writes."""
    grid = study.grid.Grid(tuple(study.grid.Cell(*cell) for cell in cells), repeats)
    facts = {"epochs": 2, "batch_size": 32, "limit_batches": None, "data": "data"}
    sizes = {"images": {"train": 640, "val": 64}, "bytes": {"train": 6.4e7, "val": 6.4e6}}
    study.grid.claim(out, facts | sizes, grid)
    machine = study.environment.environment(out)
    for run in grid.runs(out):
        run.folder.mkdir(parents=True)
        make(run.folder / "run", run.repeat)
        result = {"outcome": "ok", "resident_ratio": 0.004, "environment": machine}
        study.grid.write_json(run.folder / "result.json", result)


GRID = [
    (form, cache, workers)
    for form in ("files", "tar", "memmap")
    for cache in ("cold", "warm")
    for workers in (0, 4)
]


def csv_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_are_those_of_the_run_log(study: SimpleNamespace, tmp_path: Path) -> None:
    cell = ("files", "cold", 4)
    keep(study, tmp_path, [cell], lambda path, n: observed(path, {1: 1, 2: 5, 3: 2}[n]))
    found = study.measured.Study.from_folder(tmp_path)
    log = RunLog.open(tmp_path / "runs" / "files-cold-4w-epoch" / "1" / "run")
    rank, summary = log.ranks[0], summarize(log)
    first = (rank.epoch() == 0) & (rank.step() != SETUP) & (rank.step() != 0)
    step_ns = rank.metric("step/duration_ns")[first].mean()

    cell = study.grid.Cell(*cell)
    step = study.measured.Study.of_epoch(found, cell, 0, "step/duration_ns")
    assert step == pytest.approx((2 * step_ns, step_ns, 5 * step_ns, 3))
    train = found.of_epoch(cell, 0, "train_step_ns").low
    later = [rank.metric(f"phase/{name}_ns")[first].mean() for name in ("validation", "checkpoint")]
    assert train == pytest.approx(step_ns - sum(later))
    read = [found.of_epoch(cell, epoch, "io/data_read_bytes").low for epoch in (0, -1)]
    assert sum(read) == pytest.approx(summary["metrics"]["io/data_read_bytes"]["sum"], rel=1e-6)
    hits = [found.of_epoch(cell, epoch, "cache/hit_ratio").low for epoch in (0, 1)]
    assert min(hits) <= summary["metrics"]["cache/hit_ratio"]["mean"] <= max(hits)
    made = summary["loader"]["compute_ns"]
    busy = found.of_epoch(cell, 1, "batch/compute_ns")
    assert busy.high == pytest.approx(made / (4 * train), rel=0.2)
    saved = found.of_run(cell, "blocking_ns").low
    assert saved == pytest.approx(summary["checkpoints"][0]["blocking_ns"])
    assert found.of_epoch(cell, 2, "step/duration_ns") is None


def test_every_figure_and_table_is_made(study: SimpleNamespace, tmp_path: Path) -> None:
    cells = [*GRID, ("files", "warm", 4, "never"), ("files", "warm", 4, "10")]
    keep(study, tmp_path, cells, lambda path, n: observed(path, 1 + n / 10), repeats=2)
    figures(study, tmp_path)
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    names = ("step-time", "step-parts", "page-cache", "workers", "checkpoints")
    pictures = {f"{name}.{suffix}" for name in names for suffix in ("pdf", "png")}
    assert made == {*pictures, "results.md", "results.tex", "runs.csv"}
    for name in pictures:
        assert (tmp_path / "figures" / name).stat().st_size > 5_000
    text = (tmp_path / "figures" / "results.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(cells)
    assert "not measured" not in text
    assert "mapped" in text
    assert (tmp_path / "figures" / "results.tex").read_text().count(r"\\") == 1 + len(cells)
    assert len(csv_rows(tmp_path / "figures")) == len(cells) * 2 * 2


def figures(study: SimpleNamespace, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["figures.py", str(out)])
        study.figures.main()


def without_ebpf(run_dir: Path, _: int) -> None:
    kept = ("step/duration_ns", "loader/wait_ns", "phase/forward_ns", "phase/checkpoint_ns")
    table = busy_run(STEPS)
    columns = {name: table.columns[name] for name in kept}
    table = replace(table, columns=columns, cells=None, batches=None)
    write(run_dir, table, level="timing", capabilities={}, end={"outcome": "ok"})


def test_what_was_not_measured_is_told_and_not_drawn(
    study: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(study, tmp_path, [("files", "cold", 0), ("files", "cold", 4)], without_ebpf)
    figures(study, tmp_path)
    told = capsys.readouterr().out
    assert "page-cache: not drawn" in told
    assert "workers: not drawn" in told
    assert not (tmp_path / "figures" / "workers.png").exists()
    assert (tmp_path / "figures" / "step-parts.png").exists()
    row = (tmp_path / "figures" / "results.md").read_text().splitlines()[9]
    assert row.startswith("| files | cold | 4 |")
    assert row.count("not measured") == 5  # read, from disk, hits, workers, others
    (first, *_) = csv_rows(tmp_path / "figures")
    assert first["run:sched/others_cpu_ratio"] == ""
    assert float(first["loader/wait_ns"]) > 0
    assert "io/data_read_bytes" not in first


def test_runs_that_do_not_count_are_told(
    study: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(study, tmp_path, [("files", "cold", 4)], lambda path, n: observed(path), repeats=4)
    folder = tmp_path / "runs" / "files-cold-4w-epoch"
    for number, change in ((2, {"outcome": "not cold: 30% of"}), (3, {"outcome": "failed with 1"})):
        path = folder / str(number) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (folder / "4" / "result.json").unlink()
    figures(study, tmp_path)
    told = capsys.readouterr().out
    text = (tmp_path / "figures" / "results.md").read_text()
    for why in ("run 2: not cold: 30% of", "run 3: failed with 1", "not run yet: 1 of the runs"):
        assert why in told
        assert why in text
    assert "| 1 of 4 |" in text


def test_a_cell_without_a_run_is_in_tables_and_figures(
    study: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [("files", "cold", 4), ("files", "warm", 4), ("tar", "cold", 4), ("tar", "warm", 4)]
    keep(study, tmp_path, cells, lambda path, n: observed(path), repeats=2)
    for cell, outcome in (("files-warm-4w-epoch", "failed with 1"), ("tar-warm-4w-epoch", None)):
        for number in "12":
            path = tmp_path / "runs" / cell / number / "result.json"
            path.write_text(json.dumps({"outcome": outcome}))
            if outcome is None:
                path.unlink()
    words: list[str] = []
    monkeypatch.setattr(study.pictures, "word", lambda panel, at, text, *_: words.append(text))
    monkeypatch.setattr(study.drawing, "word", lambda panel, at, text, *_: words.append(text))
    found = study.measured.Study.from_folder(tmp_path)
    drawn = study.pictures.draw(found, tmp_path)
    assert set(drawn) == set(study.pictures.PICTURES)
    # A point, a bar in each of two figures, and two bars in each of two epochs.
    assert sorted(words) == ["failed with 1"] * 7 + ["not run"] * 7
    rows = [row for row in study.tables.rows(found) if row[1] == "warm"]
    assert [row[4] for row in rows] == ["0 of 2: failed with 1", "0 of 2: not run"]
    assert {text for row in rows for text in row[5:]} == {"-"}


def test_parts_of_a_bar_are_of_one_run_and_add_up(study: SimpleNamespace, tmp_path: Path) -> None:
    keep(study, tmp_path, [("tar", "warm", 4)], lambda path, n: observed(path, {1: 3, 2: 1}[n]), 2)
    found = study.measured.Study.from_folder(tmp_path)
    (cell,) = found.drawn()
    pictures = study.pictures
    row = found.middle_epoch(cell, 0, "step/duration_ns")
    assert row["step/duration_ns"] == found.of_epoch(cell, 0, "step/duration_ns").low
    bar = pictures.parts(row, {**pictures.WAITS, **pictures.WORK}, 1.0)
    assert sum(bar.values()) == pytest.approx(row["step/duration_ns"])
    saved = found.middle_run(cell, "blocking_ns")
    assert sum(pictures.saving(saved).values()) == pytest.approx(saved["blocking_ns"] / 1e6)
    del saved["fsync_ns"]
    assert list(pictures.saving(saved)) == [pictures.NO_PARTS]
    assert pictures.saving({}) == {}


@pytest.mark.parametrize(("others", "is_told"), [(0.125, False), (0.25, True)])
def test_a_busy_machine_is_told(
    study: SimpleNamespace, tmp_path: Path, others: float, is_told: bool
) -> None:
    keep(study, tmp_path, [("tar", "warm", 1)], lambda path, n: observed(path, others=others), 2)
    told = study.measured.Study.from_folder(tmp_path).disturbed()
    sentence = (
        "other processes took up to 25% of the CPUs, and more than 15% in 2 of 2 runs: "
        "times may be theirs"
    )
    assert told == (sentence if is_told else None)
    study.tables.write_tables(study.measured.Study.from_folder(tmp_path), tmp_path / "tables")
    assert (sentence in (tmp_path / "tables" / "results.md").read_text()) == is_told


def test_the_metrics_that_are_taken_exist(study: SimpleNamespace) -> None:
    measured = study.measured
    assert {measured.READ, measured.DISK, measured.HIT, measured.OTHERS} <= METRICS.keys()


def test_a_grid_of_real_trainings(photo_dir: Path, tmp_path: Path) -> None:
    """From run.py to the figures, cold and warm, and what the probes saw is in the tables."""
    out = tmp_path / "out"
    same = "--repeats 1 --epochs 1 --limit-batches 3 --batch-size 8 --depth 10 --image-size 32"
    for varied in (
        "--formats files,tar --cache cold --workers 0,2",
        "--formats memmap --cache warm --workers 0 --checkpoints never,2",
    ):
        words = grid_command(IMAGENET, photo_dir, out, *same.split(), *varied.split())
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    drawn = subprocess.run(
        [sys.executable, STUDY / "figures.py", out], capture_output=True, text=True
    )
    assert drawn.returncode == 0, drawn.stderr
    rows = csv_rows(out / "figures")
    assert len(rows) == 6
    assert {row["level"] for row in rows} <= {"ebpf", "procfs"}
    assert {row["checkpoints"]: bool(row["run:blocking_ns"]) for row in rows} == {
        "epoch": True,
        "2": True,
        "never": False,
    }
    for row in rows:
        if row["level"] == "ebpf" and row["format"] != "memmap":
            disk, read = (float(row[f"{room}/data_read_bytes"]) for room in ("block", "io"))
            assert disk > 0.9 * read > 0
            assert float(row["cache/hit_ratio"]) < 0.1
