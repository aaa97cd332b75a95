"""Compiling a program of the user's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainobs.core.errors import ProbeError
from trainobs.probes import compiling

HUGE = """#include "trainobs_probe.h"
SEC("tp_btf/sys_enter") int BPF_PROG(p, void *regs, long n) {{ {} return 0; }}
""".format("".join(f"if (n == {7 * n}) trainobs_add(0, {n}, 0);\n" for n in range(20_000)))


@pytest.mark.parametrize("compiler", ["clang", "zig"])
def test_a_program_that_keeps_the_compiler_busy_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    if compiler == "clang" and not shutil.which("clang"):
        pytest.skip("no clang")
    monkeypatch.setattr(compiling, "_CPU_S", 1)
    source = tmp_path / "huge.c"
    source.write_text(HUGE)
    with pytest.raises(ProbeError) as caught:
        compiling.compile_source(source, tmp_path / "huge.o", compiler)
    assert caught.value.failed == "cannot compile huge.c"
    assert caught.value.found.endswith(", as after 1 s of CPU")
