"""Hatchling's hook: compiles the BPF object where the package is built from source."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Run, not imported: the folder is no package, and `build` is also the name of a PyPI project.
bpf = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "bpf" / "build.py")))


MACHINE = "TRAINOBS_WHEEL_MACHINE"
"""Environment variable: the type of machine to build a wheel for that PyPI takes, one of
`bpf.TARGET_ARCH`. Without it the wheel is for machines like this one."""

MANYLINUX = "manylinux_2_17"
"""The lowest tag that both types of machine have. The objects hold code for the kernel alone, so
that no libc matters to them."""


class ProbeBuildHook(BuildHookInterface[Any]):
    """Compiles the probes and ships them in the wheel, with what programs of a user's include."""

    def dependencies(self) -> list[str]:
        """What the isolated build environment needs: a compiler, where the system has none."""
        return [] if bpf.has_clang() else [bpf.ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `version` is "standard", or "editable" for `pip install -e`."""
        machine = os.environ.get(MACHINE)
        for target in (*bpf.build(arch=machine), *bpf.copy_headers()):
            build_data["artifacts"].append(str(target.relative_to(self.root)))
        # The objects are for one type of machine, but for any Python.
        build_data["pure_python"] = False
        local = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{f'{MANYLINUX}_{machine}' if machine else local}"
