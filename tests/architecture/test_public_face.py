"""The public face is small, lazy, and changes only on purpose."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import trainobs
from tests import warm
from trainobs.access.counts import AccessCounts
from trainobs.core.errors import MissingPackageError
from trainobs.integrations.huggingface import ObsTrainerCallback
from trainobs.integrations.lightning import ObsCallback
from trainobs.integrations.plain import observe
from trainobs.probes.bcc_probe import BccProbe
from trainobs.probes.own_probe import Probe
from trainobs.report.notebook import load_run

NAMES = [
    *("AccessCounts", "BccProbe", "ObsCallback", "ObsTrainerCallback", "Observation", "Probe"),
    *("load_run", "observe", "phase"),
]


def test_the_names_that_trainobs_offers():
    assert trainobs.__all__ == sorted([*NAMES, "TrainobsError", "__version__"])
    assert set(trainobs.__all__) <= set(dir(trainobs))


@pytest.mark.parametrize(
    ("absent", "gone"),
    [
        (["transformers"], {"ObsTrainerCallback"}),
        (["lightning", "pytorch_lightning", "transformers"], {"ObsCallback", "ObsTrainerCallback"}),
        (
            ["lightning", "pytorch_lightning", "transformers", "torch"],
            {"ObsCallback", "ObsTrainerCallback", "Observation", "observe"},
        ),
    ],
)
def test_what_needs_an_absent_framework_is_not_offered(absent, gone):
    offered = [name for name in NAMES if name not in gone]
    script = (
        "import json, sys\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        "import trainobs\n"
        "listed = [name for name in dir(trainobs) if name in trainobs._HOME]\n"
        "from trainobs import *\n"
        "bound = [name for name in trainobs._HOME if name in globals()]\n"
        "print(json.dumps([listed, sorted(bound), __version__]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [offered, offered, trainobs.__version__]


def test_each_name_is_the_one_of_its_room():
    assert trainobs.AccessCounts is AccessCounts
    assert trainobs.ObsCallback is ObsCallback
    assert trainobs.ObsTrainerCallback is ObsTrainerCallback
    assert trainobs.Probe is Probe
    assert trainobs.BccProbe is BccProbe
    assert trainobs.load_run is load_run
    assert trainobs.observe is observe


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("trainobs import ObsCallback", "lightning.pytorch import Callback"),
        ("pytorch_lightning import Callback", "trainobs import ObsCallback"),
    ],
)
def test_the_class_itself_is_a_callback_as_lightning_cli_asks(first, then):
    script = f"from {first}; from {then}; print(issubclass(ObsCallback, Callback))"
    answer = warm.run([sys.executable, "-c", script])
    assert answer.stdout == "True\n", answer.stderr


def test_what_the_callbacks_take_is_what_help_shows():
    shown = inspect.signature(ObsCallback)
    assert shown == inspect.signature(ObsTrainerCallback)
    assert {"probes", "run_dir", "io", "quiet"} <= set(shown.parameters)


def test_a_type_checker_takes_the_callback_and_knows_its_arguments(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(Path(trainobs.__file__).parents[1]))
    script = tmp_path / "script.py"
    script.write_text(
        """from trainobs import ObsCallback
class Callback: ...
def trainer(callbacks: list[Callback]) -> None: ...
trainer([ObsCallback(probes="off", io=True)])
ObsCallback(no_such=3)
"""
    )
    how = ["--config-file=", "--no-site-packages", "--ignore-missing-imports"]
    out, _, _ = api.run([*how, "--follow-imports=silent", f"--cache-dir={tmp_path}", str(script)])
    (error,) = [line for line in out.splitlines() if "error:" in line]
    assert error.startswith(f"{script}:5: ")
    assert "no_such" in error


def test_the_version_is_that_of_the_installed_package():
    assert trainobs.__version__ == importlib.metadata.version("trainobs")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'trainobs' has no attribute 'nothing'"):
        _ = trainobs.nothing


def test_a_warning_is_seen_where_no_logging_is_set_up():
    # So no NullHandler: a run that falls back to /proc has to say so.
    script = "import logging, trainobs; logging.getLogger('trainobs.session').warning('heard')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr == b"heard\n"


@pytest.mark.parametrize(
    ("absent", "use", "extra"),
    [
        ("torch", "from trainobs import observe", "torch"),
        ("torch", "from trainobs import ObsCallback", "lightning"),
        ("torch", "from trainobs import ObsTrainerCallback", "huggingface"),
        ("transformers", "from trainobs import ObsTrainerCallback", "huggingface"),
        (
            "lightning pytorch_lightning",
            "from trainobs import ObsCallback; ObsCallback()",
            "lightning",
        ),
        ("torch", "from trainobs.fae import pack", "fae"),
        ("torchrec", "from trainobs.fae import FAEEmbeddingCollectionSharder", "fae"),
    ],
)
def test_what_a_missing_package_keeps_from_use_names_the_extra_to_install(absent, use, extra):
    # A finder, since None among the modules is no package that is missing.
    script = f"""
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {absent.split()}
        return None if hidden else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder() if finder is PathFinder else finder for finder in sys.meta_path]
{use}
"""
    command = [sys.executable, "-c", script]
    if absent == "torch":  # which a warm process has
        done = subprocess.run(command, capture_output=True, text=True)
    else:
        done = warm.run(command)
    failed, found, do = done.stderr.splitlines()[-3:]
    name = use.removesuffix("()").split()[-1]
    assert failed == f"trainobs.core.errors.MissingPackageError: {name} cannot be used here."
    assert found.startswith("  found: ")
    assert do == f"  do:    pip install {shlex.join(MissingPackageError.PACKAGES[extra])}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of 3.11")
@pytest.mark.parametrize("extra", MissingPackageError.PACKAGES)
def test_an_error_names_what_the_extra_brings(extra):
    import tomllib

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    brought = brought_by(extra, extras)
    assert brought - set(MissingPackageError.PACKAGES[extra]) <= {"torch>=2.5"}
    assert brought >= set(MissingPackageError.PACKAGES[extra])


def brought_by(extra, extras):
    brought = set()
    for each in extras[extra]:
        inner = each.removeprefix("trainobs[").removesuffix("]")
        brought |= {each} if inner == each else brought_by(inner, extras)
    return brought
