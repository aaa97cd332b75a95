"""Hatchling's hook: compiles the BPF object where the package is built from source."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Run, not imported: the folder is no package, and `build` is also the name of a PyPI project.
bpf = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "bpf" / "build.py")))


class ProbeBuildHook(BuildHookInterface[Any]):
    """Compiles the probes and ships them in the wheel."""

    def dependencies(self) -> list[str]:
        """What the isolated build environment needs: a compiler, where the system has none."""
        return [] if bpf.has_clang() else [bpf.ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `version` is "standard", or "editable" for `pip install -e`."""
        for target in bpf.build():
            build_data["artifacts"].append(str(target.relative_to(self.root)))
        # The objects are for one type of machine, but for any Python.
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
