"""What is compiled is loaded whole, or not at all: what was cut off would end the training."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainobs.core import compiled, native
from trainobs.core.compiled import is_whole, mark_of
from trainobs.core.errors import ProbeError
from trainobs.core.native import loops
from trainobs.core.once import Once
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.extra import ExtraObject
from trainobs.probes.loader import LibbpfLoader
from trainobs.steps import fast_path

PACKAGE = Path(native.__file__).parents[1]
FILES = [*PACKAGE.glob("*/*.so"), *OBJECTS.glob("*.bpf.o")]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library of loops, half of it, in the place of the whole one."""
    if loops() is None:
        pytest.skip("the part in C is not built")
    whole = native._PATH.read_bytes()
    half = tmp_path / "half.so"
    half.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(native, "_PATH", half)
    native.loops.cache_clear()
    yield half
    native.loops.cache_clear()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_built_is_whole_and_nothing_less_is(file: Path, tmp_path: Path) -> None:
    assert is_whole(file)
    data = file.read_bytes()
    end = len(data) - len(mark_of(PACKAGE))
    for length in (0, 1, 63, 64, end // 2, end - 1):
        (tmp_path / "part").write_bytes(data[:length])
        assert not is_whole(tmp_path / "part"), length


def test_half_a_library_is_not_loaded(cut: Path) -> None:
    assert loops() is None


def test_half_a_library_would_end_who_loads_it(cut: Path) -> None:
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        try:
            ctypes.CDLL(str(cut))
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGBUS


@pytest.mark.parametrize("text", [b"", b"\x7fELF", b"of another kind" * 9])
def test_what_is_no_library_is_not_loaded(cut: Path, text: bytes) -> None:
    cut.write_bytes(text)
    assert loops() is None


def test_a_library_of_another_machine_is_not_loaded(cut: Path) -> None:
    data = bytearray((PACKAGE / "core" / "_loops.so").read_bytes())
    data[18] ^= 0xFF  # e_machine
    cut.write_bytes(data)
    assert is_whole(cut)
    assert loops() is None


def test_half_an_object_of_the_probes_is_told(tmp_path: Path) -> None:
    data = next(OBJECTS.glob("*.bpf.o")).read_bytes()
    (tmp_path / "half.o").write_bytes(data[: len(data) // 2])
    with pytest.raises(ProbeError, match="half.o is cut off"):
        LibbpfLoader([tmp_path / "half.o"])


def other_sources(place: Path) -> None:
    """A checkout whose sources are not those that this one was built from."""
    for folder in ("bpf", "native"):
        (place / folder).mkdir()
    (place / "bpf" / "trainobs.h").write_text("/* newer */")
    (place / "native" / "clock.c").write_text("/* newer */")


@pytest.fixture
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sources that are newer than what was built, as after a `git pull`."""
    other_sources(tmp_path)
    caches = (native.loops, compiled._expected)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr(compiled, "_once", Once())
    monkeypatch.setattr(compiled, "_ROOT", tmp_path)
    yield
    for cache in caches:
        cache.cache_clear()


def test_what_is_built_is_of_the_sources_beside_it() -> None:
    for file in OBJECTS.glob(f"*.{platform.machine()}.*bpf.o"):  # `make bpf` builds no others
        assert compiled.flaw_of(file, "bpf") == ""
    for file in filter(Path.exists, (native._PATH, fast_path._PATH)):
        assert compiled.flaw_of(file, "native") == ""


def test_a_stale_library_is_not_loaded_and_that_is_told_once(
    pulled: None, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_whole(native._PATH):
        pytest.skip("the part in C is not built")
    assert loops() is None
    native.loops.cache_clear()
    assert loops() is None
    (line,) = caplog.messages
    assert "built from other sources" in line
    assert "`make bpf`" in line
    assert "\n" not in line


def test_what_was_installed_without_sources_is_loaded(
    pulled: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bpf" / "trainobs.h").unlink()
    assert (loops() is not None) == is_whole(native._PATH)
    assert caplog.messages == []


def test_sources_of_another_folder_alone_tell_of_no_library(
    pulled: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "native" / "clock.c").unlink()
    (tmp_path / "native").rmdir()
    assert compiled.is_stale(next(OBJECTS.glob("*.bpf.o")), "bpf")
    assert (loops() is not None) == is_whole(native._PATH)
    assert caplog.messages == []


def test_a_package_below_the_root_directory_can_be_imported() -> None:
    there = {"__file__": "/trainobs/core/compiled.py", "__name__": "compiled"}
    exec(compile(Path(compiled.__file__).read_text(), "compiled.py", "exec"), there)
    assert there["_ROOT"] == Path("/")


def test_a_stale_object_of_the_probes_is_told(pulled: None) -> None:
    file = next(OBJECTS.glob("*.bpf.o"))
    with pytest.raises(ProbeError, match="built from other sources than .*/bpf holds"):
        LibbpfLoader([file])


@pytest.mark.parametrize("stem", ["seen", "support", "again"])
def test_a_stale_object_beside_the_probes_is_told(pulled: None, tmp_path: Path, stem: str) -> None:
    file = next(OBJECTS.glob(f"{stem}.*.bpf.o"))
    (own := tmp_path / "own.bpf.o").write_bytes(b"the user's own")
    with pytest.raises(ProbeError, match="built from other sources than .*/bpf holds") as error:
        ExtraObject([own, file], {}, "what it is for")
    assert error.value.failed == "cannot load what it is for"


def test_a_stale_fast_path_leaves_a_run_to_python(tmp_path: Path) -> None:
    if not is_whole(fast_path._PATH):
        pytest.skip("the part in C is not built")
    other_sources(tmp_path)
    script = f"""
from pathlib import Path
from trainobs.core import compiled
compiled._ROOT = Path({str(tmp_path)!r})
from trainobs import observe
with observe(probes="off", run_dir={str(tmp_path / "run")!r}, quiet=True) as observation:
    for number in range(3):
        with observation.step():
            pass
from trainobs.steps.fast_path import LANGUAGE
print(LANGUAGE)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "Python\n"
    assert done.stderr.count("built from other sources") == 1
