"""The grid of trainings of the ImageNet example's study, and the page cache before each."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from tests.examples.conftest import IMAGENET, grid_command

STAND_IN = """
import json, os, sys, time
from pathlib import Path

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words["--run-dir"])
if words["--workers"] == os.environ.get("BREAK"):
    raise SystemExit("cannot train\\n  found: a broken cell\\n  do:    mend it")
if words["--workers"] == os.environ.get("HANG"):
    Path(os.environ["HERE"]).write_text(str(os.getpid()))
    time.sleep(600)
(folder / "checkpoints").mkdir(parents=True)
(folder / "run.json").write_text(json.dumps(words))
"""
"""In the place of train.py, whose imports take seconds: it leaves what the grid looks at."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The example with a stand-in for its training, and the study's own scripts."""
    folder = tmp_path / "imagenet"
    ignored = shutil.ignore_patterns(".data", "__pycache__")
    shutil.copytree(IMAGENET, folder, ignore=ignored)
    (folder / "train.py").write_text(STAND_IN)
    return folder


@pytest.fixture
def run_grid(
    study: SimpleNamespace, copied: Path, photo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., int]]:
    """Runs a grid in this process, whose trainings are stand-ins; returns its status."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(study.run, "EXAMPLE", copied)
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # or its thread stays

    def run(out: Path, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", grid_command(copied, photo_dir, out, *arguments)[1:])
        return study.run.main()

    yield run
    signal.signal(signal.SIGTERM, before)


SMALL = ("--formats", "files,memmap", "--workers", "0,1", "--cache", "warm", "--repeats", "1")


def results(out: Path) -> dict[str, dict[str, object]]:
    return {
        path.parent.parent.name: json.loads(path.read_text())
        for path in out.glob("runs/*/*/result.json")
    }


def test_a_broken_cell_is_told_and_tried_again(
    run_grid: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setenv("BREAK", "1")
        assert run_grid(out, *SMALL) == 1
    told = capsys.readouterr().out
    assert told.count("failed with status 1; the end of") == 2
    assert "found: a broken cell" in told
    assert "2 of 4 runs failed; the same command tries them again" in told
    outcomes = {name: result["outcome"] for name, result in results(out).items()}
    assert sorted(outcomes.values()) == ["failed with status 1"] * 2 + ["ok"] * 2
    first = results(out)["files-warm-0w-epoch"]

    assert run_grid(out, *SMALL) == 0
    told = capsys.readouterr().out
    assert "4 runs, 2 of them done" in told
    assert "packed into" not in told  # once is enough
    assert {result["outcome"] for result in results(out).values()} == {"ok"}
    assert results(out)["files-warm-0w-epoch"] == first
    assert not list(out.glob("runs/*/*/run/checkpoints"))

    got = json.loads((out / "runs" / "memmap-warm-1w-epoch" / "1" / "run" / "run.json").read_text())
    assert got["--data"].endswith("/memmap")
    assert (got["--workers"], got["--checkpoints"], got["--epochs"]) == ("1", "epoch", "2")


def test_a_page_cache_that_is_not_as_it_should_be_fails_the_run(
    study: SimpleNamespace,
    run_grid: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    words = ("--formats", "files", "--workers", "0", "--cache", "cold", "--repeats", "1")
    with monkeypatch.context() as full:
        full.setattr(study.run, "evict", study.run.read_through)
        assert run_grid(out, *words) == 1
    told = capsys.readouterr().out
    assert "not cold: 100.0% of the data set were in memory; not trained\n    end what maps" in told
    assert not list(out.glob("runs/*/*/run"))
    monkeypatch.setattr(study.run, "resident_ratio", lambda _: None)  # the kernel does not tell
    assert run_grid(out, *words) == 0
    (result,) = results(out).values()
    assert (result["outcome"], result["resident_ratio"]) == ("ok", None)


def test_a_grid_of_which_nothing_runs_is_stopped(
    run_grid: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAK", "0")
    words = ("--formats", "files", "--cache", "warm", "--workers", "0", "--repeats", "4")
    with pytest.raises(SystemExit, match="the first 3 runs all failed"):
        run_grid(tmp_path / "out", *words)
    assert len(results(tmp_path / "out")) == 1
    assert len(list((tmp_path / "out").glob("runs/*/*/result.json"))) == 3
    with pytest.raises(SystemExit, match=r"(?s)cannot run the grid.*File exists.*see to that"):
        run_grid(tmp_path / "out" / "study.json", *words)


def test_what_lies_beside_the_splits_is_left_alone(study: SimpleNamespace, tmp_path: Path) -> None:
    for name in ("train/a/1.jpg", "val/a/2.jpg", "test/3.jpg", "train.tar"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
    names = {path.name for path, _ in study.run.image_files(tmp_path)}
    assert names == {"1.jpg", "2.jpg"}
    assert dict(study.run.image_files(tmp_path / "test")) == {tmp_path / "test" / "3.jpg": 4}


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_grid_that_is_stopped_goes_on(
    run_grid: Callable[..., int],
    copied: Path,
    photo_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sent: signal.Signals,
) -> None:
    out, here = tmp_path / "out", tmp_path / "here"
    words = ("--formats", "files", "--cache", "cold", "--workers", "0,1", "--repeats", "2")
    grid = subprocess.Popen(
        grid_command(copied, photo_dir, out, *words),
        env={**os.environ, "HANG": "1", "HERE": str(here)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: here.exists() and here.read_text() != "")
        with pytest.raises(SystemExit, match="another one runs in"):
            run_grid(out, *words)
    finally:
        grid.send_signal(sent)
        assert grid.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(sent, -sent)
    wait_for(lambda: not is_there(int(here.read_text())))  # the training ends with it
    done = len(results(out))
    capsys.readouterr()
    assert run_grid(out, *words) == 0
    assert f"4 runs, {done} of them done" in capsys.readouterr().out
    assert len(list(out.glob("runs/*/*/result.json"))) == 4


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_grid_grows_and_keeps_its_settings(run_grid: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--formats", "files", "--cache", "warm", "--repeats", "1", "--workers", "0")
    assert run_grid(out, *words) == 0
    assert run_grid(out, *words, "--checkpoints", "never,5") == 0
    assert sorted(results(out)) == [f"files-warm-0w-{when}" for when in ("5", "epoch", "never")]
    assert len(json.loads((out / "study.json").read_text())["cells"]) == 3
    with pytest.raises(SystemExit, match="was made with epochs 2, now it is 3"):
        run_grid(out, *words, "--epochs", "3")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--formats", ","], r"--formats without a value.*give one or more"),
        (["--formats", "zip"], r"--formats zip.*choose of files, tar, memmap"),
        (["--cache", "lukewarm"], r"--cache lukewarm.*choose of cold, warm"),
        (["--workers", "two"], r"--workers two.*give numbers"),
        (["--checkpoints", "often"], r"--checkpoints often.*give epoch, never, or"),
        (["--repeats", "0"], r"--repeats 0.*give 1 or more"),
        (["--epochs", "0"], r"--epochs 0.*give --epochs 1 or more"),
        (["--data", "/nowhere"], r"no folder /nowhere/train.*name a folder with"),
    ],
)
def test_wrong_input_is_told_in_three_lines(
    study: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit, match=f"(?s){told}") as error:
        study.run.main()
    assert str(error.value).count("\n") == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(study: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    grid = study.grid.Grid((), 1)
    with pytest.raises(SystemExit, match="belong to no study"):
        study.grid.claim(tmp_path, {}, grid)
    with pytest.raises(SystemExit, match=r"(?s)cannot read a study.*give the --out"):
        study.measured.Study.from_folder(tmp_path)
    (tmp_path / "new").mkdir()
    study.grid.claim(tmp_path / "new", {}, grid)
    with pytest.raises(SystemExit, match="no run to draw"):
        study.measured.Study.from_folder(tmp_path / "new")


def test_a_full_disk_stops_the_grid(
    study: SimpleNamespace, tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    run = study.grid.Run(study.grid.Cell("files", "warm", 0), 1, disk("size=1m") / "a" / "1")
    with pytest.raises(SystemExit, match=r"(?s)cannot run the grid.*1 MB free.*goes on"):
        study.run.check_room(run)


def test_rounds_have_every_cell_in_an_order_of_their_own(
    study: SimpleNamespace, tmp_path: Path
) -> None:
    grid = study.grid.Grid.product(["files", "tar"], ["cold", "warm"], ["0", "2"], ["epoch"], 3)
    runs = list(grid.runs(tmp_path))
    assert [run.repeat for run in runs] == [1] * 8 + [2] * 8 + [3] * 8
    rounds = [tuple(run.cell for run in runs[first : first + 8]) for first in (0, 8, 16)]
    assert len(set(rounds)) == 3
    assert {frozenset(cells) for cells in rounds} == {frozenset(grid.cells)}
    assert list(grid.runs(tmp_path)) == runs


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[Path, int]]:
    """Three files, of which one has half a page at its end, and one nothing."""
    sizes = (10 * mmap.PAGESIZE, 2 * mmap.PAGESIZE + 7, 0)
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(os.urandom(size))
    return [(tmp_path / str(number), size) for number, size in enumerate(sizes)]


def test_files_leave_the_page_cache_and_come_back(
    study: SimpleNamespace, files: list[tuple[Path, int]]
) -> None:
    cache = study.page_cache
    paths = [path for path, _ in files]
    assert cache.resident_ratio(files) == 1.0  # they were just written
    cache.evict(paths)
    if cache.resident_ratio(files) == 1.0 and on_tmpfs(paths[0]):
        pytest.skip("a tmpfs is nothing but page cache")
    assert cache.resident_ratio(files) == 0.0
    cache.read_through(paths[1:])
    assert cache.resident_ratio(files) == 3 / 13
    with paths[1].open("rb") as file:
        assert cache.by_mincore(file.fileno(), files[1][1]) == 3
    with paths[0].open("rb") as file:
        assert cache.by_mincore(file.fileno(), files[0][1]) == 0


def on_tmpfs(path: Path) -> bool:
    found = subprocess.run(["stat", "-fc", "%T", path], capture_output=True, text=True)
    return found.stdout.strip() == "tmpfs"


def test_a_page_that_somebody_maps_stays_and_is_seen(
    study: SimpleNamespace, files: list[tuple[Path, int]]
) -> None:
    path = files[0][0]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == files[0][1]
        study.page_cache.evict([path])
        held = study.page_cache.resident_ratio(files[:1])
    assert held == 1.0
    assert study.run.why_not("cold", held) == "not cold: 100.0% of the data set were in memory"
    assert study.run.why_not("warm", held) is None
    assert study.run.why_not("warm", 0.5) == "not warm: 50.0% of the data set were in memory"
    assert study.run.why_not("cold", None) is None  # nobody knows


def test_an_old_kernel_asks_mincore(
    study: SimpleNamespace, files: list[tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study.page_cache, "CACHESTAT", 9999)  # no such call: ENOSYS
    assert study.page_cache.resident_ratio(files) == 1.0
    monkeypatch.setattr(study.page_cache, "is_own", lambda _: False)
    assert study.page_cache.resident_ratio(files) is None


def test_the_machine_is_told(study: SimpleNamespace, tmp_path: Path) -> None:
    found = study.environment.environment(tmp_path)
    assert found["kernel"] == os.uname().release
    assert found["packages"]["torch"]
    assert found["disk"]["file_system"]
    assert "Linux" in study.tables.machine(found, 2, "ebpf")
