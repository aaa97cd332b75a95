"""`Probe` and how it is given."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from trainobs import Probe
from trainobs.core.errors import SettingError
from trainobs.probes.programs import PROBES
from trainobs.session.settings import Settings


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    path = tmp_path / "my.c"
    path.touch()
    return Probe(path, attach={"f": "uprobe/libc.so.6:getpid"})


def test_it_comes_beside_ours(probe: Probe) -> None:
    for given in (["auto", probe], [probe], probe):
        settings = Settings.parse(probes=given)
        assert (settings.probes, settings.required) == (frozenset(PROBES), False)
        assert settings.own == (probe,)
    named = Settings.parse(probes=["sched", probe, probe])
    assert (named.probes, named.required, named.own) == (frozenset({"sched"}), True, (probe, probe))
    assert Settings.parse(probes=["auto"]) == Settings.parse()
    assert Settings.parse(probes=[]).probes == frozenset()


@pytest.mark.parametrize("beside", ["off", "none", 3])
def test_what_makes_no_sense_beside_it_is_refused(probe: Probe, beside: object) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.parse(probes=[probe, beside])
    assert repr(beside) in caught.value.found
    assert "`Probe`" in caught.value.do


def test_it_can_be_copied_and_pickled(probe: Probe) -> None:
    assert pickle.loads(pickle.dumps(probe)) == copy.deepcopy(probe) == probe


@pytest.mark.parametrize("path", ["no/such.c", "no/such.o", __file__, "", 3, None, "a\0.c"])
def test_what_is_no_program_is_refused(path: object) -> None:
    with pytest.raises(SettingError) as caught:
        Probe(path)  # type: ignore[arg-type]
    assert "ends in .c or .o" in caught.value.do


@pytest.mark.parametrize(
    "attach", [3, {"f": 3}, {3: "uprobe/a:b"}, {"f": "kprobe/a:b"}, {"f": "usdt/a:b"}, {"f": "a:b"}]
)
def test_a_place_that_is_none_is_refused(probe: Probe, attach: object) -> None:
    with pytest.raises(SettingError) as caught:
        Probe(probe.path, attach=attach)  # type: ignore[arg-type]
    assert "uprobe/FILE:FUNCTION" in caught.value.do
