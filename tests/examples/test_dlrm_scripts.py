from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.examples.conftest import DLRM, run_script
from tests.examples.test_dlrm_criteo import write

SMALL = "--batch-size 256 --val-steps 2 --rows-scale 0.001 --workers 1"


def run(script: str, *arguments: object, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    return run_script(script, *SMALL.split(), *arguments, example=DLRM, ranks=ranks)


def test_hot_rows_train_beside_the_stock_sharder(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = run("train_fae.py", "--steps", 12, "--hot-bytes", "200kB", "--run-dir", run_dir, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "FAE profile" in done.stdout
    rows = re.findall(r"^ *(\S.*?)  +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [left for name, left, _ in rows if "hot" in name or "batch" in name] == ["-"] * 6
    table = {name: right for name, _, right in rows}
    assert 5 < float(table["hot lookups, %"]) < 100
    assert float(table["hot rows, MB"]) <= 0.2
    stock, fae = re.findall(r"AUC of validation +(\S+) +(\S+)", done.stdout)[0]
    assert abs(float(stock) - float(fae)) < 0.05
    (logs,) = re.findall(r"run logs: (\S+) and (\S+)", done.stdout)
    assert len(set(logs)) == 2
    assert all((Path(log) / "rank=1").is_dir() for log in logs)


def auc(printed: str) -> float:
    (found,) = re.findall(r"validation AUC ([0-9.]+)", printed)
    return float(found)


def test_lightning_trains_and_reports(tmp_path: Path) -> None:
    done = run("train.py", "--steps", 60, "--lr", 0.05, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "15360 inputs in " in done.stdout
    assert 0.6 < auc(done.stdout) < 0.9
    assert f"trainobs report of {tmp_path / 'run'}" in done.stdout
    assert re.search(r"steps +60\b", done.stdout)
    assert "Embedding lookups" in done.stdout


def test_data_without_a_line_to_validate_on_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "train.txt"
    data.write_text("no line\nof Criteo's\n")
    for script in ("train.py", "train_torchrec.py"):
        done = run(script, "--data", data, "--no-obs", "--run-dir", tmp_path / "run")
        assert done.returncode == 1
        assert "nothing was validated\n  found: no lines of Criteo's format" in done.stderr
        assert "Traceback" not in done.stderr


def test_two_ranks_train_on_criteo_files(tmp_path: Path) -> None:
    data = write(tmp_path / "train.txt", 3000)
    text = data.read_text().splitlines(keepends=True)
    text[1234] = "1\t2\n"
    # More of the bytes in the first half, so that one rank has more batches than the other.
    text[:1000] = [line.replace("\t7\t", "\t70000000000\t") for line in text[:1000]]
    data.write_text("".join(text))
    run_dir = tmp_path / "run"
    done = run("train_torchrec.py", "--data", data, "--run-dir", run_dir, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "train.txt, line 1235: 2 columns, not 40" in done.stderr
    assert "malformed lines skipped: 1" in done.stdout
    assert 0 <= auc(done.stdout) <= 1
    (inputs,) = re.findall(r"(\d+) inputs in ", done.stdout)
    assert 2000 < int(inputs) < 2550  # six sevenths of the lines, less what one rank had more
    assert {path.name for path in run_dir.glob("rank=*")} == {"rank=0", "rank=1"}
