"""The public face is small, lazy, and changes only on purpose."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

import trainobs
from trainobs.access.counts import AccessCounts
from trainobs.integrations.huggingface import ObsTrainerCallback
from trainobs.integrations.lightning import ObsCallback
from trainobs.integrations.plain import observe


def test_the_names_that_trainobs_offers():
    assert trainobs.__all__ == [
        "AccessCounts",
        "ObsCallback",
        "ObsTrainerCallback",
        "__version__",
        "observe",
    ]
    assert set(trainobs.__all__) <= set(dir(trainobs))


@pytest.mark.parametrize(
    ("absent", "offered"),
    [
        (["transformers"], ["AccessCounts", "ObsCallback", "observe"]),
        (["lightning", "pytorch_lightning", "transformers"], ["AccessCounts", "observe"]),
        (["lightning", "pytorch_lightning", "transformers", "torch"], ["AccessCounts"]),
    ],
)
def test_what_needs_an_absent_framework_is_not_offered(absent, offered):
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
    assert trainobs.observe is observe


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


def test_without_transformers_the_name_that_needs_it_says_what_to_do():
    script = "import sys; sys.modules['transformers'] = None; import trainobs; trainobs.observe; "
    done = subprocess.run(
        [sys.executable, "-c", script + "trainobs.ObsTrainerCallback"],
        capture_output=True,
        text=True,
        check=False,
    )
    failed, found, do = done.stderr.splitlines()[-3:]
    assert failed == "ImportError: cannot make an ObsTrainerCallback"
    assert found.startswith("  found: ")
    assert do.startswith("  do:    pip install transformers accelerate, or observe your loop")
