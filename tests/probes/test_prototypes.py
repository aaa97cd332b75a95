"""Arguments of tracepoints and functions: those that programs read, and those that a kernel has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes import prototypes, shared
from trainobs.probes.kernel_names import KERNEL_BTF
from trainobs.probes.libbpf import open_library
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.programs import PROBES, TREE, programs_of
from trainobs.probes.prototypes import NUMBER, READ, strange_points

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = re.compile(
    r'(?:PREEMPTIBLE_PROG\("([^"]+)"|SEC\("([^"]+)"\)\s*int BPF_PROG\()'  # where it is attached
    r"[, ]*\w+,?\s*([^)]*)\)"
)

HOOKS = {
    point
    for program in (*programs_of(PROBES).values(), *TREE)
    for variant in program.variants
    for _, point in variant.attach_points
    if not point.startswith("iter/")
}

needs_types = pytest.mark.skipif(not KERNEL_BTF.exists(), reason="the kernel has no BTF")


def word(declared: str) -> str:
    """A parameter in C, as `READ` has it."""
    if "*" not in declared:
        return NUMBER
    kind = re.sub(r"\b(const|struct)\b|\w+$|\s", "", declared)
    return "*" if kind == "void*" else kind


def declared() -> dict[str, set[tuple[str, ...]]]:
    """Hook -> the arguments that programs there declare, of all programs in the sources."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for source in (ROOT / "bpf").glob("*.bpf.h"):
        for first, second, text in HEAD.findall(source.read_text()):
            words = tuple(word(one.strip()) for one in text.split(",") if one.strip())
            found.setdefault(first or second, set()).add(words)
    return found


def test_the_arguments_that_are_compared_are_those_that_the_programs_declare() -> None:
    assert declared() == {point: {words} for point, words in READ.items()}
    assert READ.keys() == HOOKS


@needs_types
def test_nothing_is_strange_about_this_kernel() -> None:
    assert strange_points(open_library()) == set()


@needs_types
@pytest.mark.parametrize(
    ("point", "read"),
    [
        # As if a number had come in front of others.
        ("tp_btf/sched_switch", (NUMBER, NUMBER, "task_struct*", "task_struct*")),
        ("tp_btf/sched_wakeup", ("folio*",)),
        ("tp_btf/sys_exit", (NUMBER, "pt_regs*")),
        ("tp_btf/sched_wakeup", ("task_struct*", NUMBER)),
        ("fexit/inet_sendmsg", ("socket*", "*", NUMBER)),
    ],
)
def test_other_arguments_are_strange(
    monkeypatch: pytest.MonkeyPatch, point: str, read: tuple[str, ...]
) -> None:
    monkeypatch.setattr(prototypes, "READ", {**READ, point: read})
    assert strange_points(open_library()) == {point}


def test_types_that_cannot_be_read_have_nothing_strange(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(b"no BTF")
    assert strange_points(open_library(), bytes(tmp_path / "vmlinux")) == set()


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that nobody has looked at, with other arguments of two tracepoints."""
    monkeypatch.setattr(shared, "kernel_version", lambda: (99, 0))
    other = {"tp_btf/sched_switch": ("task_struct*",), "tp_btf/block_io_start": ("bio*",)}
    monkeypatch.setattr(prototypes, "READ", {**READ, **other})


@pytest.mark.needs_bpf
@pytest.mark.usefixtures("newer")
def test_a_program_whose_arguments_changed_does_not_run_and_another_way_stands_in() -> None:
    kernel = LocalBackend()
    try:
        off = {name: state for name, state in kernel.status.items() if state != "on"}
        points = kernel.attach_points()
    finally:
        kernel.stop()
    reason = "this kernel has no tracepoint sched_switch with arguments that trainobs knows"
    assert off.keys() == {"tobs_switch", "tobs_wakeup", "tobs_wakeup_new"}
    assert off["tobs_switch"] == reason
    assert "block_getrq" in points["tobs_blk_start"]


@pytest.mark.needs_bpf
@pytest.mark.usefixtures("newer")
def test_a_probe_that_is_asked_for_and_has_other_arguments_is_an_error() -> None:
    with pytest.raises(ProbeError, match="arguments that trainobs knows") as caught:
        LocalBackend(["sched"], required=True)
    assert caught.value.cause is ProbeCause.NO_TRACEPOINT


@pytest.mark.needs_bpf
def test_a_kernel_that_was_looked_at_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "kernel_version", lambda: prototypes.KNOWN)
    monkeypatch.setattr(prototypes, "READ", {"tp_btf/sched_switch": ("task_struct*",)})
    kernel = LocalBackend(["sched"])
    kernel.stop()
    assert kernel.status["tobs_switch"] == "on"
