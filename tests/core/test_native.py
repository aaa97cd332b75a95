"""What is compiled is loaded whole, or not at all: what was cut off would end the training."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainobs.core import native
from trainobs.core.compiled import is_whole
from trainobs.core.errors import ProbeError
from trainobs.core.native import lookups
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.loader import LibbpfLoader

PACKAGE = Path(native.__file__).parents[1]
FILES = [*PACKAGE.glob("*/*.so"), *OBJECTS.glob("*.bpf.o")]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library of lookups, half of it, in the place of the whole one."""
    if lookups() is None:
        pytest.skip("the part in C is not built")
    whole = native._PATH.read_bytes()
    half = tmp_path / "half.so"
    half.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(native, "_PATH", half)
    native.lookups.cache_clear()
    yield half
    native.lookups.cache_clear()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_built_is_whole_and_nothing_less_is(file: Path, tmp_path: Path) -> None:
    assert is_whole(file)
    data = file.read_bytes()
    for length in (0, 1, 63, 64, len(data) // 2, len(data) - 1):
        (tmp_path / "part").write_bytes(data[:length])
        assert not is_whole(tmp_path / "part"), length


def test_half_a_library_is_not_loaded(cut: Path) -> None:
    assert lookups() is None


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
    assert lookups() is None


def test_a_library_of_another_machine_is_not_loaded(cut: Path) -> None:
    data = bytearray((PACKAGE / "core" / "_lookups.so").read_bytes())
    data[18] ^= 0xFF  # e_machine
    cut.write_bytes(data)
    assert is_whole(cut)
    assert lookups() is None


def test_half_an_object_of_the_probes_is_told(tmp_path: Path) -> None:
    data = next(OBJECTS.glob("*.bpf.o")).read_bytes()
    (tmp_path / "half.o").write_bytes(data[: len(data) // 2])
    with pytest.raises(ProbeError, match="half.o is cut off"):
        LibbpfLoader([tmp_path / "half.o"])
