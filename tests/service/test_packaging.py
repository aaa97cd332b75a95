"""The examples of packaging/: what can be tried here of how they start the service."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kernel.ground_truth import PRIMES, read_whole, write_files
from tests.kernel.privileges import NOBODY
from tests.kernel.processes import ROOT, join
from tests.service.service import Observed, Service, as_user, data_of
from trainobs.core.abi import FileClass, Op
from trainobs.probes import shared
from trainobs.service.main import _parser

PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "trainobs-probed.service"

AMBIENT = """
import sys
from pathlib import Path
from tests.kernel.privileges import CAP_BPF, CAP_PERFMON, become_nobody
from trainobs.probes import shared
from trainobs.service.main import _parser, main
_parser().format_help()  # Python reads some of its files late, where that user may not look
shared.OBJECTS = Path(OBJECTS)
become_nobody((CAP_BPF, CAP_PERFMON))
sys.exit(main())
"""


def settings(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if re.match(r"\w+=", line)]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_gives_the_two_capabilities_and_nothing_else() -> None:
    unit = settings(UNIT)
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"] == "CAP_BPF CAP_PERFMON"
    assert unit["NoNewPrivileges"] == "yes"
    assert f"/run/{unit['RuntimeDirectory']}" == str(_parser().get_default("socket").parent)
    program, *options = unit["ExecStart"].split()
    assert Path(program).name in (ROOT / "pyproject.toml").read_text()
    _parser().parse_args(options)


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd on this machine")
    # Neither the program nor the user need be on the machine that tests.
    text = re.sub(r"(?m)^ExecStart=.*", "ExecStart=/bin/true", UNIT.read_text())
    text = re.sub(r"(?m)^(User|Group)=.*", r"\1=root", text)
    (tmp_path / UNIT.name).write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / UNIT.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert UNIT.name not in done.stderr, done.stderr
    assert done.returncode == 0


def test_the_daemon_set_gives_the_two_capabilities_and_nothing_else() -> None:
    pod = yaml.safe_load((PACKAGING / "kubernetes" / "daemonset.yaml").read_text())
    pod = pod["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert container["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["BPF", "PERFMON"],
    }
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "privileged" not in container["securityContext"]
    _parser().parse_args(container.get("args", []))


def serves_another_user(service: Service) -> None:
    place = service.path.parent
    files = write_files(place / "data")

    def work() -> None:
        observed = Observed(service.path)
        assert set(observed.kernel.status.values()) == {"on"}
        got = data_of(observed, place, lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, FileClass.DATA) == sum(PRIMES)
        observed.stop()

    join(as_user(work, uid=NOBODY - 1))


@pytest.mark.needs_bpf
def test_a_service_of_a_plain_user_with_two_capabilities_serves_another_user(
    open_place: Path,
) -> None:
    """As systemd starts it; its objects are copied to where that user may read them."""
    for path in shared.object_files({shared.KFUNC}):
        shutil.copy(path, open_place)
    home = open_place / "run"
    home.mkdir()
    shutil.chown(home, NOBODY)
    service = Service(
        home / "probed.sock", code=AMBIENT.replace("OBJECTS)", f"{str(open_place)!r})")
    )
    try:
        assert service.path.stat().st_uid == NOBODY
        serves_another_user(service)
    finally:
        assert service.stop() == 0


@pytest.mark.needs_bpf
def test_a_service_of_a_root_with_two_capabilities_serves_another_user(open_place: Path) -> None:
    """As a container starts it."""
    few = ["--bounding-set=-all,+bpf,+perfmon", "--no-new-privs"]
    before = ["setpriv", *few, f"--regid={NOBODY}", "--clear-groups"]
    service = Service(open_place / "probed.sock", before=before)
    try:
        serves_another_user(service)
    finally:
        assert service.stop() == 0
