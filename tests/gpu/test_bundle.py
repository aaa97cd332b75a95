"""benchmarks/gpu: pieces run in order, within their time, and once; a bundle arrives whole."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import bundle
from benchmarks.gpu.join import join
from benchmarks.gpu.plan import Piece, pieces, run
from tests.session.jobs import wait_for

ROOT = Path(__file__).parents[2]
TELL = "import json, sys; json.dump({'is': 'told'}, open(sys.argv[1], 'w'))"


def piece(name, code, about_s=0.0, limit_s=20.0):
    return Piece(name, ("-c", code, "{out}"), about_s, limit_s)


def is_over(pid):
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def came(folder):
    found = json.loads((folder / "all.json").read_text())
    return {name: state["came"] for name, state in found.items()}


def test_pieces_run_once_and_a_later_call_goes_on_behind_the_last(tmp_path):
    log = tmp_path / "log"
    count = f"open({str(log)!r}, 'a').write('x')\n" + TELL
    plan = [
        piece("one", count),
        piece("two", TELL, about_s=1000),
        piece("bad", "raise SystemExit(7)"),
    ]
    assert run(plan, tmp_path, within_s=60) == ["two"]
    assert came(tmp_path) == {"one": "passed", "bad": "failed"}
    assert json.loads((tmp_path / "one.json").read_text())["found"] == {"is": "told"}
    assert run(plan, tmp_path, within_s=2000) == []
    assert came(tmp_path) == {"one": "passed", "two": "passed", "bad": "failed"}
    assert log.read_text() == "x"
    run(plan, tmp_path, within_s=60, again=["one"])
    assert log.read_text() == "xx"


def test_a_piece_is_ended_at_its_limit_with_its_children_and_keeps_what_it_wrote(tmp_path):
    code = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "json.dump(child.pid, open(sys.argv[1], 'w'))\n"
        "time.sleep(60)"
    )
    assert run([piece("long", code, limit_s=0.7)], tmp_path, within_s=60) == []
    state = json.loads((tmp_path / "long.json").read_text())
    assert state["came"] == "ran too long"
    wait_for(lambda: is_over(state["found"]), patience_s=10)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_piece_ends_with_the_call_that_began_it_and_runs_again(tmp_path, number):
    code = (
        "import os, pathlib, sys, time\n"
        "tried = pathlib.Path(sys.argv[1] + '.tried')\n"
        "if not tried.exists():\n"
        "    tried.with_suffix('.new').write_text(str(os.getpid()))\n"
        "    tried.with_suffix('.new').rename(tried)\n"
        "    time.sleep(60)\n" + TELL
    )
    plan = [piece("one", code)]
    call = multiprocessing.get_context("fork").Process(target=run, args=(plan, tmp_path, 60))
    call.start()
    tried = tmp_path / "one.out.json.tried"
    while not tried.exists():
        time.sleep(0.01)
    os.kill(call.pid, number)
    call.join()
    began = Path(f"/proc/{tried.read_text()}/status")
    deadline = time.monotonic() + 30
    while began.exists() and "State:\tZ" not in began.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert json.loads((tmp_path / "one.json").read_text()) == {"came": "begun", "attempts": 1}
    assert run(plan, tmp_path, within_s=60) == []
    assert json.loads((tmp_path / "one.json").read_text())["attempts"] == 2
    assert came(tmp_path) == {"one": "passed"}


def test_a_piece_that_took_its_machine_along_is_tried_again_but_not_for_ever(tmp_path):
    plan = [piece("one", TELL)]
    state = tmp_path / "one.json"
    state.write_text(json.dumps({"came": "begun", "attempts": 1}))
    assert run(plan, tmp_path, within_s=60) == []
    assert json.loads(state.read_text())["came"] == "passed"
    state.write_text(json.dumps({"came": "begun", "attempts": 2}))
    run(plan, tmp_path, within_s=60)
    assert json.loads(state.read_text())["came"] == "begun"


def test_all_pieces_fit_25_minutes_and_each_fits_a_call():
    plan = pieces("cuda")
    assert sum(piece.about_s for piece in plan) < 25 * 60
    assert max(piece.limit_s for piece in plan) < 9 * 60
    assert [piece.name for piece in plan][:2] == ["kernels", "parity"]


def fat_binary(*codes):
    entries = b"".join(
        struct.pack("<HHIQ", 2, 0x101, 64, len(code)).ljust(28, b"\0")
        + struct.pack("<I", arch).ljust(36, b"\0")
        + code
        for arch, code in codes
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def test_kernels_of_other_devices_are_erased_and_nothing_else():
    codes = [(80, b"\x01" * 40), (90, b"\x02" * 24), (100, b"\x03" * 8)]
    library = bytearray(b"head" + fat_binary(*codes) + b"\xba" + fat_binary(*codes) + b"tail")
    before = bytes(library)
    assert bundle.keep_kernels(library, 90) == 2 * 48
    assert len(library) == len(before)
    assert library.count(b"\x02" * 24) == 2
    assert b"\x01" * 8 not in library
    assert b"\x03" * 8 not in library
    changed = [i for i in range(len(before)) if before[i] != library[i]]
    assert all(before[i] in (1, 3) for i in changed)


@pytest.fixture
def carried(tmp_path):
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "import hashlib\n" + "# %s\n" * 10)
        archive.writestr("thing/data", bytes(range(256)) * 40)
    source = ROOT / "benchmarks" / "pairs.py"
    names = bundle.write(tmp_path / "bundle", [wheel], [source], None, piece_bytes=500)
    assert len(names) > 2
    return tmp_path / "bundle"


def test_a_bundle_is_joined_to_what_went_in(carried):
    assert join(carried) == 0
    assert (carried / "joined/site/thing/data").read_bytes() == bytes(range(256)) * 40
    pairs = (ROOT / "benchmarks/pairs.py").read_bytes()
    assert (carried / "joined/trainobs/benchmarks/pairs.py").read_bytes() == pairs


def test_a_bundle_with_a_piece_missing_or_damaged_is_refused(carried, capsys):
    (carried / "piece-01").unlink()
    (carried / "piece-02").write_bytes(b"other")
    assert join(carried) == 1
    assert "piece-01 is missing, piece-02 is damaged" in capsys.readouterr().out
    assert not (carried / "joined").exists()
