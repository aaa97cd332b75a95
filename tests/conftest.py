"""Leak check: no test leaves anything behind, neither in the process nor in the kernel."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests import kernel_state, warm
from tests.kernel.privileges import is_dumpable, set_dumpable
from tests.probed import probed
from tests.samples import small_disk
from tests.slow import all_slow, is_slow, none_slow
from trainobs.probes import protocol

PATIENCE_S = 60.0
"""How long threads and processes that were told to end may take."""

HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "from tests.warm")
"""Processes that multiprocessing and `tests/warm.py` keep until the interpreter exits."""

MUST_NOT_CHANGE = ("environment", "current directory", "dumpable")
"""Of these, what is gone counts as well as what is new."""

Things = dict[str, set[tuple[str | bytes, object]]]
"""What to look at -> the things there: a name to show, and what tells two of that name apart."""


LAST = ("embeddings", "examples", "fae")
"""Folders whose tests come last: gloo, Ray and fork servers stay in the process after them, and
tests of the process tree and of collectives count what is in this process."""

LONGEST = ("test_ray_job", "test_sharder_parity")
"""Modules of these that come first among them: one process runs all tests of one, for which the
others would wait at the end."""

MEASURE = (
    *("attach", "benchmarks", "embeddings", "examples", "fae", "gpu", "hooks", "host"),
    *("integrations", "kernel", "service", "session", "verdict"),
)
"""Folders whose tests hold what was observed against clocks and counters of the same machine. A
host that takes the CPUs away between the two readings spoils the measurement, so it is made twice
more, with the jobs of its module. The summary shows which; `--fail-on-flaky` allows none."""

OF_THE_KERNEL = ("attach", "kernel", "service")
"""Folders whose tests root must not skip: it can have all that they need."""

SERVED = ("hooks", "integrations")
"""Folders whose runs get their probes from a service, as on a node that has one; those of other
folders load them."""


def pytest_sessionstart() -> None:
    """Hear Ctrl-C, also where a shell started this in the background: jobs of tests inherit it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules that have no test of the kind that is wanted."""
    if not collection_path.name.startswith("test_"):
        return None
    unwanted = {"not slow": all_slow, "slow": none_slow}.get(config.option.markexpr)
    return (unwanted is not None and unwanted(collection_path)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark slow tests, before `-m` chooses."""
    if is_slow(item.nodeid):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of some folders to the end, the longest first; let some run again."""
    items.sort(key=lambda item: (item.path.parent.name in LAST, item.path.stem not in LONGEST))
    for item in items:
        if item.path.parent.name in MEASURE:
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_sessionfinish() -> None:
    warm.stop()


def pytest_collection_finish() -> None:
    """Spare garbage collections what is imported by now: each would look at it for 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a test that leaves a thread, a process or the like, or changes the process."""
    base = tmp_path_factory.getbasetemp()
    before = _things(base)
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := _left(before, _things(base))) and time.monotonic() < deadline:
        time.sleep(0.02)
    if "current directory" in left:  # or every test after this one would suffer
        os.chdir(next(iter(before["current directory"]))[0])
    if "dumpable" in left:  # no service serves a process that is not
        set_dumpable(1)
    if "processes" in left:  # what they hold in the kernel would fail the run at its end
        _kill(_child_processes() - before["processes"])
    if left:
        pytest.fail(f"left behind: {left}", pytrace=False)


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    """Has torch.compile forget a test: where it has compiled before, hooks may be too late."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.fixture(scope="session", autouse=True)
def kernel_leak_check() -> Iterator[None]:
    """Fails the run if one of its programs is still in the kernel at the end."""
    if kernel_state.why_no_bpf():
        yield
        return
    before = kernel_state.program_ids()
    yield
    if left := kernel_state.left_behind(before):
        pytest.fail(f"programs left in the kernel: {left}", pytrace=False)


@pytest.fixture(scope="session")
def service_of_tests(kernel_leak_check: None) -> Iterator[Path | None]:
    """Socket of a service that is there for all tests; None where there can be none."""
    if os.geteuid() or kernel_state.why_no_bpf():
        yield None
        return
    with probed() as path:
        yield path


@pytest.fixture(scope="module", autouse=True)
def served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has runs of some folders ask the service of the tests for their probes."""
    served = request.path.parent.name in SERVED
    path = request.getfixturevalue("service_of_tests") if served else None
    with pytest.MonkeyPatch.context() as patch:
        if path:
            patch.setenv(protocol.VARIABLE, str(path))
        yield


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """Compiles the programs, each kind once for all processes of the tests."""
    from bpf import build

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def objects(compiler: str, machine: str) -> list[Path]:
        try:
            build.compiler(compiler)
        except build.BuildError as error:
            pytest.skip(error.args[0])
        out = shared / f"{compiler}-{machine}"
        with open(out.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if all(path.exists() for path in build.object_paths(machine, out)):
                return [*build.object_paths(machine, out)]
            return build.build(out, compiler, arch=machine, werror=True)

    return objects


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options below the test's directory."""
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    with ExitStack() as mounts:
        yield lambda options: mounts.enter_context(small_disk(tmp_path / "disk", options))


@pytest.fixture
def drop_caches() -> Callable[[], None]:
    """A function that empties the page cache, so that the next read of a file goes to the disk."""
    if os.geteuid():
        pytest.skip("only root may empty the page cache")

    def drop() -> None:
        os.sync()  # dirty pages stay in the cache
        Path("/proc/sys/vm/drop_caches").write_text("1")

    return drop


def pytest_runtest_setup(item: pytest.Item) -> None:
    if getattr(item, "execution_count", 1) > 1:
        _forget_jobs_of_module(item)
    if item.get_closest_marker("needs_bpf") and (reason := kernel_state.why_no_bpf()):
        # A skip would let the kernel side rot unseen: in CI, and where it is all that is tested.
        if os.geteuid() == 0 and ("CI" in os.environ or item.path.parent.name in OF_THE_KERNEL):
            pytest.fail(f"root must be able to load probes: {reason}", pytrace=False)
        pytest.skip(f"needs BPF: {reason}")


def _forget_jobs_of_module(item: pytest.Item) -> None:
    """Have the fixtures that a module's tests share made anew, which pytest-rerunfailures keeps."""
    assert isinstance(item, pytest.Function)
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        for fixture in fixtures:
            if fixture.scope == "module":
                fixture.finish(item._request)


def _things(base: Path) -> Things:
    """What there is now; of mounts, those below the directory of this process's tests."""
    return {
        "threads": {(thread.name, thread.ident) for thread in threading.enumerate()},
        "processes": _child_processes(),
        "BPF descriptors": _bpf_descriptors(),
        "mounts": _mounts(base),
        # pytest itself writes the name of the running test.
        "environment": {pair for pair in os.environb.items() if pair[0] != b"PYTEST_CURRENT_TEST"},
        "current directory": {(os.getcwd(), None)},
        "dumpable": {(str(is_dumpable()), None)},
    }


def _left(before: Things, now: Things) -> dict[str, list[str]]:
    left = {}
    for what, things in now.items():
        new = things ^ before[what] if what in MUST_NOT_CHANGE else things - before[what]
        if new:
            left[what] = sorted({os.fsdecode(name) for name, _ in new})
    return left


def _child_processes() -> set[tuple[str, object]]:
    found: set[tuple[str, object]] = set()
    multiprocessing.active_children()  # takes in what has ended: torch 2.5 leaves failed workers
    for task in os.listdir("/proc/self/task"):
        for child in _read(f"/proc/self/task/{task}/children").split():
            command = _read(f"/proc/{child}/cmdline").replace("\0", " ")
            if not any(helper in command for helper in HELPERS):
                found.add((command or "a zombie", child))
    return found


def _kill(processes: set[tuple[str, object]]) -> None:
    for _, child in processes:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(int(str(child)), signal.SIGKILL)
            # Else it would die, and be a new zombie, in the next test.
            os.waitid(os.P_PID, int(str(child)), os.WEXITED | os.WNOWAIT)


def _read(path: str) -> str:
    """What is in a file of `/proc`; nothing, where thread or process have ended meanwhile."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode()
    except OSError:
        return ""


def _mounts(base: Path) -> set[tuple[str, object]]:
    points = (line.split()[1] for line in _read("/proc/self/mounts").splitlines())
    return {(point, None) for point in points if point.startswith(f"{base}/")}


def _bpf_descriptors() -> set[tuple[str, object]]:
    found: set[tuple[str, object]] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the listing's own descriptor
            continue
        if target.startswith("anon_inode:bpf"):
            found.add((target, fd))
    return found
