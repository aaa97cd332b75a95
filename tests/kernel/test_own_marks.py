"""Programs at marks (USDT): arguments as they are, or the program is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.own import Marked, Own, source
from trainobs.probes import compiling, libbpf, usdt
from trainobs.probes.compiling import compile_source
from trainobs.probes.own_probe import Probe

pytestmark = pytest.mark.needs_bpf


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(tmp_path)


@pytest.mark.parametrize("other", [True, False])
def test_an_object_that_reads_arguments_elsewhere_is_refused(
    tmp_path: Path, marked: Marked, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Compiled with the usdt.bpf.h of another libbpf: it would read 0 for each of them."""
    longer = bool(usdt.header_folders(libbpf.version_of(libbpf.open_library()))) != other
    with monkeypatch.context() as patch:
        version = (1, 7) if longer else (1, 6)
        patch.setattr(compiling, "version_of", lambda library: version)
        built = compile_source(source(tmp_path), tmp_path / "own.bpf.o")
    own = Own(Probe(built, attach=marked.attach))
    own.stop()
    told = own.programs.status["own.bpf.o"]
    assert (told == "on") is not other
    assert ("otherwise than the usdt.bpf.h that the object was compiled with" in told) is other


def test_a_file_without_the_mark_is_said_to_have_none(tmp_path: Path, marked: Marked) -> None:
    places = marked.attach | {"tobs_own_mark": f"usdt/{marked.path}:tobs:no"}
    own = Own(Probe(source(tmp_path), attach=places))
    own.stop()
    assert own.programs.status["own.c"].endswith(f": {marked.path} has no mark tobs:no")
