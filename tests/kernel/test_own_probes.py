"""What a user's own programs see counts in the step and the role that it belongs to."""

from __future__ import annotations

import logging
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.lifetime import own_programs, still_loaded
from tests.kernel.own import COUNTERS, GETSID, Marked, Own, do, source
from tests.kernel.processes import Outsider, fork, in_child, in_thread, in_worker
from trainobs.core.abi import OWN_COUNTERS
from trainobs.core.errors import ProbeError
from trainobs.core.own_counter import OWN_ROLES, of_role
from trainobs.probes import trial
from trainobs.probes.compiling import compile_source
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.own_probe import Probe
from trainobs.probes.own_programs import SHARED_MAPS, OwnPrograms, _support
from trainobs.probes.trial import try_object
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

HEAD = '#include "trainobs_probe.h"\nTRAINOBS_COUNTER(0, "{}", "calls");\n'
MARKS = "#include <bpf/usdt.bpf.h>\n"
PROGRAM = 'SEC("tp_btf/sys_enter") int BPF_PROG(p, void *regs, long n) {{ {} return 0; }}\n'
ADD = PROGRAM.format("trainobs_add(0, 1, 0);")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def marked(place: Path) -> Marked:
    return Marked(place)


@pytest.fixture(scope="module")
def built(place: Path) -> Path:
    """The object of the programs of `own.SOURCE`."""
    return compile_source(source(place), place / "own.bpf.o")


@pytest.fixture
def own(built: Path, marked: Marked) -> Iterator[Own]:
    found = Own(Probe(built, attach=marked.attach))
    yield found
    found.stop()
    vars(found).clear()


def test_each_role_counts_in_its_step(own: Own, marked: Marked) -> None:
    assert own.programs.status == {"own.bpf.o": "on"}

    def work() -> None:
        marked.do(7, 1, 2)
        in_thread(lambda: marked.do(3, 2, 4))
        in_worker(lambda: marked.do(11, 30, 6))
        in_child(lambda: marked.do(5, 40, 8))

    steps = [own.during(work), own.during(lambda: marked.do(1, 0, 0)), own.during(lambda: None)]
    by_role = {
        "getsid_calls": (7, 3, 11, 5),
        "called": (1, 2, 30, 40),
        "called_with": (3, 6, 90, 120),
        "marked": (2, 4, 6, 8),
        "marked_with": (10, 20, 30, 40),
    }
    for name, expected in by_role.items():
        found = tuple(steps[0][of_role(f"probe/{name}", role)] for role in OWN_ROLES)
        assert found == expected, name
        assert steps[0][f"probe/{name}"] == sum(expected), name
    assert [steps[1][f"probe/{name}"] for name in COUNTERS] == [1, 0, 0, 0, 0]
    assert not any(steps[2].values())


def test_one_call_more_is_noticed(own: Own, marked: Marked) -> None:
    assert own.during(lambda: marked.do(4, 0, 1))["probe/getsid_calls"] != 3


def test_nobody_else_is_counted(own: Own, marked: Marked, outsider: Outsider) -> None:
    step = own.during(lambda: outsider.do(do, marked.path.parent, 2, 3, 4))
    assert not any(step.values())


MISSING = (
    ("tp_btf/no_such", "'no_such'", "cannot load", "available_events"),
    ("tracepoint/syscalls/no_such", "'syscalls/no_such'", "cannot attach", "available_events"),
    ("kprobe/no_such", "no_such", "cannot attach", "available_filter_functions"),
    ("uprobe/libc.so.6:no_such", "'no_such'", "attach `p` to uprobe/libc.so.6:no_such", "nm -D"),
    ("uretprobe/no_such.so:f", "'no_such.so'", "cannot attach", "a file that is there"),
    (f"usdt/{sys.executable}:a:b", ".note.stapsdt", "cannot attach", "readelf --notes"),
    ("usdt//no/such:a:b", "/no/such", "cannot attach", "a file that is there"),
    ("no/such", "'no/such'", "cannot load", "SEC() that libbpf knows"),
)
"""What programs are on and is not there: section, what is found, what failed, what to do."""

BAD = {
    "words.c": (
        HEAD.format("x") + PROGRAM.format("return nothing;"),
        "'nothing'",
        "cannot compile",
    ),
    "pointer.c": (
        HEAD.format("y") + PROGRAM.format("trainobs_add(0, *(volatile int *)n, 0);"),
        "invalid mem access",
        "cannot load",
    ),
    **{
        f"missing{n}.c": (HEAD.format(f"w{n}") + MARKS + ADD.replace("tp_btf/sys_enter", at), *told)
        for n, (at, *told) in enumerate(MISSING)
    },
    "mark.c": (
        HEAD.format("m") + ADD.replace("tp_btf/sys_enter", f"usdt/{sys.executable}:a:b"),
        "did you forget",
        "cannot attach",
        "include <bpf/usdt.bpf.h>",
    ),
    "nowhere.c": (HEAD.format("v") + ADD.replace("tp_btf/sys_enter", "uprobe"), "p", "`p` to"),
    "name.c": (HEAD.format("a/{b}") + ADD, "a name has 1 to 40 letters", "cannot use"),
    "long.c": (HEAD.format("a" * 41) + ADD, "a name has 1 to 40", "cannot use"),
    "colon.c": (HEAD.format("a:b") + ADD, "'counter:0:a:b:calls'", "cannot use"),
    "unit.c": (HEAD.format("a").replace("calls", "\\n") + ADD, "a unit has", "cannot use"),
    "blank.c": (HEAD.format(" a") + ADD, "first a letter", "cannot use"),
    "umlaut.c": (HEAD.format("z\u00e4hler") + ADD, "'z\u00e4hler'", "cannot use"),
    "byte.c": (HEAD.format("\\xff") + ADD, "'\ufffd'", "cannot use"),
    "loops.c": (
        HEAD.format("b") + PROGRAM.format("for (;;) trainobs_add(0, 1, 0);"),
        "infinite loop",
        "cannot load",
    ),
    "clashes.c": (
        HEAD.format("c") + 'int tasks SEC(".data");\n' + ADD,
        "(tasks)",
        "cannot link",
    ),
    "idle.c": (
        HEAD.format("d") + "int count(void) { return trainobs_add(0, 1, 0); }\n",
        "no function in it has a SEC()",
        "cannot use",
    ),
    "number.c": (HEAD.format("a").replace("(0", "(32") + ADD, "counter 32", "cannot use"),
    "twice.c": (HEAD.format("a b") + HEAD.format("a_b").replace("(0", "(1") + ADD, "two", "use"),
    "none.c": ("int f(void) { return 0; }", "names no counter", "cannot use", "trainobs_probe.h"),
    "taken.c": (HEAD.format("getsid calls") + ADD, "own.bpf.o has a counter", "cannot use"),
}
"""File -> program, what is found, what failed, and with some what to do."""


def test_a_program_that_is_refused_is_told_and_keeps_nothing_else_from_running(
    place: Path, built: Path, marked: Marked, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [Probe(source(place, text, name)) for name, (text, *_) in BAD.items()]
    with caplog.at_level(logging.WARNING, logger="trainobs"):
        own = Own(Probe(built, attach=marked.attach), *bad)
    try:
        assert own.programs.status["own.bpf.o"] == "on"
        told = dict(zip(BAD, (record.getMessage() for record in caplog.records), strict=True))
        for name, (_, found, failed, *do) in BAD.items():
            lines = told[name].splitlines()
            assert len(lines) == 3, told[name]
            assert failed in lines[0], told[name]
            assert lines[0].endswith("the training goes on"), told[name]
            assert found in lines[1], told[name]
            assert all(words in lines[2] for words in do), told[name]
            assert found in own.programs.status[name]
        step = own.during(lambda: marked.do(3, 2, 1))
        assert [step[f"probe/{name}"] for name in COUNTERS] == [3, 2, 6, 1, 5]
        assert np.isnan([step["probe/y"], step["probe/w3"], step["probe/w3{role=main}"]]).all()
    finally:
        own.stop()


def test_what_is_added_to_a_counter_without_a_name_is_told_of_once(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = f"if (n == {GETSID}) {{ trainobs_add(0, 1, 0); trainobs_add(2, 1, 7); }}"
    own = Own(Probe(source(place, HEAD.format("named") + PROGRAM.format(counted), "unnamed.c")))
    try:
        with caplog.at_level(logging.WARNING, logger="trainobs"):
            assert own.during(lambda: None)["probe/named"] == 0
            assert not caplog.records
            assert own.during(lambda: os.getsid(0))["probe/named"] == 1
            own.during(lambda: os.getsid(0))
    finally:
        own.stop()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("unnamed.c adds to counters that it does not name;")
    assert "found: count of counter 2, value of counter 2\n" in said


def test_a_hundred_counters_are_a_matter_of_several_files(place: Path) -> None:
    def files(count: int, each: int) -> Iterator[Probe]:
        for number in range(count):
            names = range(number * each, (number + 1) * each)
            told = [f'TRAINOBS_COUNTER({n % each}, "c{n}", "calls");\n' for n in names]
            text = '#include "trainobs_probe.h"\n' + "".join(told)
            count_all = "".join(f"trainobs_add({n % each}, {n}, 0); " for n in names)
            called = f"if (n == {GETSID}) {{ {count_all} }}"
            yield Probe(source(place, text + PROGRAM.format(called), f"many{number}.c"))

    own = Own(*files(4, 25))
    try:
        assert set(own.programs.status.values()) == {"on"}
        step = own.during(lambda: os.getsid(0))
        assert [step[f"probe/c{n}"] for n in range(100)] == list(range(100))
    finally:
        own.stop()


def damaged(built: Path) -> bytes:
    """An object whose table of names is empty, by which libbpf 1.1 crashes."""
    elf = bytearray(built.read_bytes())
    (sections,) = struct.unpack_from("<Q", elf, 0x28)
    (names,) = struct.unpack_from("<H", elf, 0x3E)
    struct.pack_into("<Q", elf, sections + 64 * names + 32, 0)  # Elf64_Shdr::sh_size
    return bytes(elf)


@pytest.mark.parametrize("kind", ["cut", "damaged"])
def test_a_broken_object_is_refused_and_ends_nothing(place: Path, built: Path, kind: str) -> None:
    broken, raw = place / f"{kind}.o", built.read_bytes()
    broken.write_bytes(raw[: len(raw) // 2] if kind == "cut" else damaged(built))
    own = Own(Probe(broken), Probe(source(place, HEAD.format("fine") + ADD, "fine.c")))
    own.stop()
    assert own.programs.status.pop("fine.c") == "on"
    (told,) = own.programs.status.values()
    assert told.startswith(("cannot use", "cannot open", "cannot link", "cannot load"))


def test_a_file_is_told_by_the_name_that_the_program_has_for_it(
    own: Own, place: Path, marked: Marked
) -> None:
    text = HEAD.format("n") + ADD.replace("tp_btf/sys_enter", "uprobe/libmine.so:no_such")
    programs = OwnPrograms(file_of=lambda name: str(marked.path))
    programs.load([Probe(source(place, text, "n.c"))], own.maps(SHARED_MAPS))
    told = programs.status["n.c"]
    assert told.startswith("cannot attach `p` to uprobe/libmine.so:no_such of n.c: ")
    assert "'no_such' in 'libmine.so'" in told


def test_a_program_of_another_machine_is_no_object_of_bpf(place: Path) -> None:
    path = place / "python.o"
    path.write_bytes(Path(sys.executable).read_bytes())
    own = Own(Probe(path))
    own.stop()
    assert "no object of BPF programs: an ELF file for machine" in own.programs.status[path.name]


def test_a_ready_object_is_tried_by_nothing_that_lies_in_the_working_directory(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(open('left', 'w').close())")
    monkeypatch.chdir(tmp_path)
    try_object([built, _support()], built.name)
    assert not Path("left").exists()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os; os.kill(os.getpid(), 11)", "libbpf crashes on it: SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "that was to try it ended with status -9: "),
        ("import nowhere", "ended with status 1: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_became_of_the_process_that_tries_an_object_is_told(
    built: Path, monkeypatch: pytest.MonkeyPatch, code: str, found: str
) -> None:
    monkeypatch.setattr(trial, "fresh_python", lambda *words: [sys.executable, "-c", code])
    with pytest.raises(ProbeError, match=re.escape(found)):
        try_object([built, _support()], built.name)


def test_a_program_of_the_object_that_is_not_there_is_named(
    built: Path, marked: Marked, caplog: pytest.LogCaptureFixture
) -> None:
    own = Own(Probe(built, attach={**marked.attach, "nobody": "uprobe/libc.so.6:getsid"}))
    own.stop()
    assert "`attach` names nobody" in caplog.text


def test_without_a_compiler_the_error_says_how_to_get_one(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    own = Own(Probe(source(place)))
    own.stop()
    assert "found: no clang on the PATH, and no ziglang package" in caplog.text
    assert "-m pip install 'ziglang>=0.14'" in caplog.text


def test_a_forked_child_lets_go_of_all_of_it(built: Path, marked: Marked) -> None:
    before, kernel = held(), LocalBackend(())
    ours = own_programs()
    kernel.load_own([Probe(built, attach=marked.attach)])
    theirs = own_programs() - ours
    assert len(theirs) == 3
    assert len(held() - before) > len(ours) + 3 * 2
    kept, tell = os.pipe()

    def work() -> None:
        kernel.abandon()
        os.write(tell, str(sorted(held() - before)).encode())
        signal.pause()

    pid = fork(work)
    try:
        assert os.read(kept, 1000) == b"[]"
        kernel.stop()
        assert still_loaded(theirs) == set()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(kept)
        os.close(tell)


def held() -> set[str]:
    """Descriptors of this process that keep a program or a uprobe."""
    kinds = ("anon_inode:bpf-prog", "anon_inode:bpf_link", "anon_inode:[perf_event]")
    paths = (path for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return {path.name for path in paths if os.readlink(path) in kinds}


def test_what_was_counted_stays_when_the_programs_are_gone(built: Path, marked: Marked) -> None:
    kernel = LocalBackend(())
    kernel.load_own([Probe(built, attach=marked.attach)])
    kernel.adopt()
    marked.do(5, 0, 0)
    found = kernel.own_tables()
    assert found is not None
    (table,) = found.tables
    kernel.stop()
    kernel.stop()
    marked.do(5, 0, 0)
    assert table.sum() == 5
    assert table.shape[1] == OWN_COUNTERS * 5 * 2


UPROBE = """
import sys
from pathlib import Path
from trainobs import Probe, observe

probe = Probe(sys.argv[1], attach={"on_call": f"uprobe/{sys.argv[2]}:getppid"})
with observe(run_dir=Path(sys.argv[1]).parent / "run", probes=[probe], quiet=True) as obs:
    with obs.step():
        pass
"""


def test_without_the_right_to_set_uprobes_it_says_which_one_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "called.c"
    program.write_text(HEAD.format("called") + 'SEC("uprobe") int on_call(void *r) { return 0; }\n')
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    maps = Path("/proc/self/maps").read_text().splitlines()
    file = next(line.split()[-1] for line in maps if "/libc.so" in line)
    command = [*without, sys.executable, "-c", UPROBE, str(program), file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if not done.stderr:  # some kernels ask for CAP_PERFMON alone
        assert RunLog.open(tmp_path / "run").info["capabilities"]["called.c"] == "on"
        return
    failed, found, do = done.stderr.splitlines()[:3]
    assert failed.endswith("it counts nothing, and the training goes on")
    assert "Permission denied" in found
    assert do == "  do:    run as root, or give the process CAP_SYS_ADMIN, which uprobes take"
