"""What `make release` builds, and what it does in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from bpf.build import KINDS
from tests.architecture.rooms import ROOT
from tests.packages.conftest import serving
from trainobs.core.version import __version__

MACHINES = ("x86_64", "aarch64")
WHEELS = {arch: f"trainobs-{__version__}-py3-none-manylinux_2_17_{arch}.whl" for arch in MACHINES}
TAB = f"trainobs_tensorboard-{__version__}-py3-none-any.whl"
SOURCES = f"trainobs-{__version__}.tar.gz"
EM_BPF = 247
OF_MACHINE = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
INSTALLED_WITHIN_S = 120

LOOP = """
import sys
import torch
from trainobs import observe

class Files(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        with open(sys.argv[1], "rb") as file:
            return torch.tensor(list(file.read(8)), dtype=torch.float32)

loader = torch.utils.data.DataLoader(Files(), batch_size=4, num_workers=1)
with observe(run_dir=sys.argv[2]) as obs:
    for batch in obs.loader(loader):
        with obs.step():
            batch.sum()
"""


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done


def clone(folder: Path) -> Path:
    run("git", "clone", "-q", ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """What `make release` leaves in dist/, of a clean clone with the environment of this one."""
    folder = clone(tmp_path_factory.mktemp("release") / "clone")
    environment = f"VENV={sys.prefix}"
    ready = f"{sys.prefix}/.ready"
    run(
        "make", "-o", ready, environment, f"TWINE={ROOT / 'build' / 'twine'}", "release", cwd=folder
    )
    return folder / "dist"


@pytest.fixture(scope="module")
def bare(dist, tmp_path_factory) -> Path:
    """An environment with the two wheels, and with what they say they need."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    begin = time.monotonic()
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    wheels = dist / WHEELS[os.uname().machine], dist / TAB
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q")
    run(*pip, "--no-compile", "--only-binary=:all:", *wheels)
    assert time.monotonic() - begin < INSTALLED_WITHIN_S
    return folder


@pytest.fixture
def alone(bare, monkeypatch) -> Path:
    """The same, where nothing else is found: no compiler, and none of this repository."""
    monkeypatch.setenv("PATH", str(bare / "bin"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert not any(map(shutil.which, ("cc", "gcc", "clang", "zig", "ld", "make")))
    return bare / "bin"


def test_these_four_are_published(dist):
    assert {file.name for file in dist.iterdir()} == {*WHEELS.values(), TAB, SOURCES}


def test_the_same_commit_gives_the_same_bytes(dist, tmp_path):
    folder = clone(tmp_path / "elsewhere")
    run("bash", folder / "scripts" / "release.sh", sys.executable, tmp_path / "again", umask=0o077)
    assert {file.name: file.read_bytes() for file in dist.iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()
    }


def test_changes_that_are_in_no_commit_are_not_released(tmp_path):
    folder = clone(tmp_path / "clone")
    (folder / "src" / "trainobs" / "new.py").touch()
    script = folder / "scripts" / "release.sh"
    done = subprocess.run(
        ["bash", script, sys.executable, tmp_path / "out"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "src/trainobs/new.py" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arch", MACHINES)
def test_a_wheel_holds_the_probes_for_its_machine_and_no_other_machine_code(dist, arch):
    with zipfile.ZipFile(dist / WHEELS[arch]) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    machines = {
        name: struct.unpack_from("<H", content, 18)[0]
        for name, content in files.items()
        if content.startswith(b"\x7fELF")
    }
    folder = "trainobs/probes/objects"
    kinds = [f"{arch}{kind}{files}" for kind in KINDS for files in ("", ".files")]
    objects = (*(f"trainobs.{kind}" for kind in kinds), f"support.{arch}")
    objects += (f"seen.{arch}", f"again.{arch}")
    native = ("core/_loops.so", "steps/_fast_path.abi3.so")
    in_c = {f"trainobs/{name}": OF_MACHINE[arch] for name in native}
    assert machines == in_c | {f"{folder}/{name}.bpf.o": EM_BPF for name in objects}
    included = {"trainobs_probe.h", "trainobs_bcc.c", "vmlinux.h"}
    included |= {"bpf/usdt.bpf.h", "libbpf-1.7/bpf/usdt.bpf.h"}
    assert {f"{folder}/include/{name}" for name in included} <= files.keys()


def test_licences_go_along(dist):
    texts = {
        "LICENSE",
        "bpf/LICENSE.BSD-2-Clause",
        "bpf/vendor/bpf/LICENSE.BSD-2-Clause",
        "src/trainobs/report/static/vendor/LICENSE.uPlot",
    }
    with zipfile.ZipFile(dist / WHEELS["aarch64"]) as wheel:
        inside = set(wheel.namelist())
        about = wheel.read(f"trainobs-{__version__}.dist-info/METADATA").decode()
    assert re.search("^License-Expression: Apache-2.0 AND .* AND MIT$", about, re.MULTILINE)
    assert {f"trainobs-{__version__}.dist-info/licenses/{name}" for name in texts} <= inside
    with tarfile.open(dist / SOURCES) as archive:
        inside = set(archive.getnames())
    assert {f"trainobs-{__version__}/{name}" for name in texts} <= inside
    with zipfile.ZipFile(dist / TAB) as wheel:
        name = f"trainobs_tensorboard-{__version__}.dist-info/licenses/LICENSE"
        assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_commands_run_without_torch_and_without_a_compiler(alone):
    assert run(alone / "trainobs", "--version").stdout == f"trainobs {__version__}\n"
    script = "import trainobs, sys; print(trainobs.__file__, 'torch' in sys.modules)"
    where, torch = run(alone / "python", "-c", script, cwd="/").stdout.split()
    assert Path(where).is_relative_to(alone.parent)
    assert torch == "False"
    page = run(alone / "trainobs", "report", ROOT / "tests" / "runlog" / "old").stdout
    assert page == run(sys.executable, "-m", "trainobs", "report", ROOT / "tests/runlog/old").stdout


@pytest.mark.needs_bpf
def test_the_probes_of_the_wheel_load(alone):
    found = json.loads(run(alone / "trainobs", "doctor", "--json", cwd="/").stdout)
    assert found["level"] == "ebpf"
    assert found["machine"]["object"]


def test_tensorboard_has_the_tab(alone, tmp_path):
    shutil.copytree(ROOT / "tests" / "runlog" / "old", tmp_path / "logs" / "run")
    with serving([str(alone / "tensorboard")], tmp_path / "logs", tmp_path / "output") as board:
        assert board.get("/data/plugins_listing").json()["trainobs"]["enabled"]
        assert [run["name"] for run in board.tab("/runs").json()["runs"]] == ["run"]
        assert board.data_of("run").status == 200


@pytest.mark.needs_bpf
def test_a_loop_is_observed_by_the_installed_probes(alone, tmp_path):
    """With the torch of this environment, which PyPI's would be too large for."""
    ours = sysconfig.get_path("purelib")
    theirs = run(alone / "python", "-c", "import site; print(*site.getsitepackages())").stdout
    (Path(theirs.split()[0]) / "torch-of-tests.pth").write_text(f"{ours}\n")
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "data").write_bytes(bytes(range(8)))
    run(alone / "python", tmp_path / "loop.py", tmp_path / "data", tmp_path / "run", cwd=tmp_path)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["level"], info["trainobs"]) == ("ebpf", __version__)
    assert info["host"]["step_clock"] == "C"
    found = json.loads(run(alone / "trainobs", "report", "--json", tmp_path / "run").stdout)
    read = {name: found["metrics"][f"io/data_read_{name}"]["sum"] for name in ("count", "bytes")}
    assert (found["steps"], read) == (50, {"count": 200, "bytes": 1600})
