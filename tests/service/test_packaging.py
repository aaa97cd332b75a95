"""The examples of packaging/: what can be tried here of how they start the service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kernel.ground_truth import PRIMES, read_whole, write_files
from tests.kernel.privileges import NOBODY
from tests.kernel.processes import ROOT, join, start_job
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


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, of which neither the program nor the user need be on the machine that tests."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd on this machine")
    text = re.sub(r"(?m)^ExecStart=.*", "ExecStart=/bin/true", UNIT.read_text())
    path = tmp_path / UNIT.name
    path.write_text(text)
    return path


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_understands_the_unit(unit: Path) -> None:
    unit.write_text(re.sub(r"(?m)^(User|Group)=.*", r"\1=root", unit.read_text()))
    done = analyze("verify", unit)
    assert UNIT.name not in done.stderr, done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(("threshold", "accepted"), [(10, True), (1, False)])
def test_the_unit_is_confined(unit: Path, threshold: int, accepted: bool) -> None:
    """In tenths: 1.0 or better as systemd counts; it needs two capabilities, so never 0.1."""
    done = analyze("security", "--offline=true", f"--threshold={threshold}", unit)
    assert (done.returncode == 0) == accepted, done.stdout


def test_the_seccomp_profile_allows_bpf_and_no_other_privilege() -> None:
    profile = json.loads((PACKAGING / "container" / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    (allowed,) = profile["syscalls"]
    assert "bpf" in allowed["names"]
    others = {"perf_event_open", "mount", "ptrace", "init_module", "unshare", "setns", "reboot"}
    assert not others & set(allowed["names"])


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
    assert container["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
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
    for path in shared.object_files({shared.KFUNC}, (7, 0)):
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


@pytest.mark.needs_bpf
def test_a_process_is_served_that_has_the_socket_on_a_read_only_mount(service: Service) -> None:
    """As pods mount it."""
    place = service.path.parent
    data = place / "data"
    write_files(data)
    mount = f"mount --bind {place} {place} && mount -o remount,bind,ro {place}"
    script = f'{mount} && ! touch {place}/x 2>/dev/null && exec "$0" "$@"'
    job = start_job(
        "served",
        before=["unshare", "--mount", "bash", "-c", script],
        socket=str(service.path),
        data=str(data),
    )
    output, _ = job.communicate()
    assert job.returncode == 0, output
    assert f"read {sum(PRIMES)}" in output
