"""Hatchling's hook: compiles what is in C where the package is built from source."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _script(folder: str) -> SimpleNamespace:
    """Run, not imported: it is in no package, and `build` is also the name of a PyPI project."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / folder / "build.py")))


bpf, native = _script("bpf"), _script("native")

MACHINE = "TRAINOBS_WHEEL_MACHINE"
"""Environment variable: the type of machine to build a wheel for that PyPI takes, one of
`bpf.TARGET_ARCH`. Without it the wheel is for machines like this one."""

MANYLINUX = "manylinux_2_17"
"""The lowest tag that both types of machine have: `native.GLIBC`. The probes are code for the
kernel alone, to which no libc matters."""


class ProbeBuildHook(BuildHookInterface[Any]):
    """Compiles the probes and what user space has in C, and ships them in the wheel.

    With what programs of a user's include. Without a compiler of C, Python does the same.
    """

    def dependencies(self) -> list[str]:
        """What the isolated build environment needs: a compiler, where the system has none."""
        return [] if bpf.has_clang() and MACHINE not in os.environ else [bpf.ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `version` is "standard", or "editable" for `pip install -e`."""
        machine = os.environ.get(MACHINE)
        targets = [*bpf.build(arch=machine), *bpf.copy_headers()]
        try:
            targets += native.build(arch=machine)
        except native.BuildError as error:
            if machine:
                raise
            for target in native.LIBRARIES:
                target.unlink(missing_ok=True)  # of another time: it may not fit
            self.app.display_warning(f"what is in C stays in Python: {error}")
        for target in targets:
            build_data["artifacts"].append(str(target.relative_to(self.root)))
        # The objects are for one type of machine, but for any Python.
        build_data["pure_python"] = False
        local = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{f'{MANYLINUX}_{machine}' if machine else local}"
