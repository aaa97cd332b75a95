"""Mounts for as long as a test needs them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(kind: str, source: Path, target: Path) -> Iterator[None]:
    option = {"bind": ["--bind"], "loop": ["-o", "loop"]}.get(kind, ["-t", kind])
    subprocess.run(["mount", *option, source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)
