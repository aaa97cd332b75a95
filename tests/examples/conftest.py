"""What the tests of examples/imagenet share: its modules, its scripts and one small photo set."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

IMAGENET = Path(__file__).parents[2] / "examples" / "imagenet"
MODULES = ("options", "photos", "data", "model")


@pytest.fixture(scope="module")
def imagenet() -> Iterator[SimpleNamespace]:
    """The example's own modules, imported as its scripts do, and forgotten again."""
    sys.path.insert(0, str(IMAGENET))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(IMAGENET))
        for name in MODULES:  # other examples may have modules of the same names
            sys.modules.pop(name, None)


def run_script(
    name: str, *arguments: object, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script of the example; ``path`` comes first where it looks for modules."""
    paths = [str(path)] if path else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, IMAGENET / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=100,
    )


@pytest.fixture(scope="session")
def photo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 photographs in 4 classes."""
    directory = tmp_path_factory.mktemp("imagenet") / "photos"
    done = run_script("photos.py", directory, "--count", 200, "--classes", 4)
    assert done.returncode == 0, done.stderr
    return directory
