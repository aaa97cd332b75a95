"""`Probe` and how it is given."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from pathlib import Path

import pytest

from trainobs import BccProbe, Probe
from trainobs.core.errors import ProbeError, SettingError
from trainobs.probes import bcc_child
from trainobs.probes.counter_declarations import checked_counters
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


def test_a_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    for path, found in ((tmp_path, f"'{tmp_path}'"), (tmp_path / "a.c", "there is no file ")):
        with pytest.raises(SettingError) as caught:
            Probe(path)
        assert caught.value.found.startswith(found)


@pytest.mark.parametrize(
    "attach", [3, {"f": 3}, {3: "uprobe/a:b"}, {"f": "kprobe/a:b"}, {"f": "usdt/a:b"}, {"f": "a:b"}]
)
def test_a_place_that_is_none_is_refused(probe: Probe, attach: object) -> None:
    with pytest.raises(SettingError) as caught:
        Probe(probe.path, attach=attach)  # type: ignore[arg-type]
    assert "uprobe/FILE:FUNCTION" in caught.value.do


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("text", 3), ("name", "a\nb"), ("name", "x" * 41), ("attach", {"f": 1})],
)
def test_what_is_no_program_of_bcc_is_refused(parameter: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        BccProbe(**{"text": "", parameter: value})  # type: ignore[arg-type]
    assert f"`{parameter}`" in caught.value.failed


def test_the_counters_of_a_text_are_told_as_those_of_an_object() -> None:
    text = """
    TRAINOBS_COUNTER(0, "a b", "calls");
    // TRAINOBS_COUNTER(1, "not this one", "calls");
    TRAINOBS_VALUE( 0 , "c" , "ns" );
    """
    told = checked_counters(BccProbe(text).told(), "bcc bcc")
    assert [(one.number, one.field, one.counter.name) for one in told] == [
        (0, "count", "probe/a_b"),
        (0, "value", "probe/c"),
    ]
    with pytest.raises(ProbeError, match="CALLS"):
        checked_counters(BccProbe('TRAINOBS_COUNTER(CALLS, "a", "b")').told(), "bcc bcc")


def test_a_script_that_is_called_bcc_is_not_taken_for_bcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run again in the process that loads its probe, and have that start one more."""
    (tmp_path / "bcc.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = importlib.util.find_spec("bcc")
    assert found
    assert found.origin == str(tmp_path / "bcc.py")
    bcc_child.pass_scripts_by()
    found = importlib.util.find_spec("bcc")
    assert not found or found.origin != str(tmp_path / "bcc.py")
