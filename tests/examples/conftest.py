"""What the tests of the examples share: their modules, their scripts and one small photo set."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGENET, DLRM = EXAMPLES / "imagenet", EXAMPLES / "dlrm"
STUDY = IMAGENET / "study"


@contextmanager
def modules_of(example: Path, *names: str) -> Iterator[SimpleNamespace]:
    """An example's own modules, imported as its scripts do, and forgotten again."""
    sys.path.insert(0, str(example))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        forget(example)


def forget(example: Path) -> None:
    """Forget an example's modules: other examples have some of the same names."""
    sys.path.remove(str(example))
    for path in example.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def imagenet() -> Iterator[SimpleNamespace]:
    with modules_of(IMAGENET, "options", "photos", "data", "model") as modules:
        yield modules


@pytest.fixture(scope="module")
def study() -> Iterator[SimpleNamespace]:
    names = ("environment", "figures", "grid", "measured", "page_cache", "run", "tables")
    names += ("drawing", "pictures")
    with modules_of(IMAGENET, "options"), modules_of(STUDY, *names) as modules:
        yield modules


def grid_command(example: Path, data: Path, out: Path, *arguments: str) -> list[str]:
    """A command that runs a grid of an example, or of a copy of it, on some data."""
    script = [sys.executable, str(example / "study" / "run.py")]
    where = ["--data", str(data), "--work", str(out.parent / "work"), "--out", str(out)]
    return [*script, *where, *arguments]


@pytest.fixture(scope="module")
def dlrm() -> Iterator[SimpleNamespace]:
    names = ("columns", "criteo", "criteo_text", "data", "model", "options", "sharded", "synthetic")
    with warnings.catch_warnings():  # FBGEMM for CPUs warns of kernels that only GPUs have
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrec")
    with modules_of(DLRM, *names) as modules:
        yield modules


def run_script(
    name: str,
    *arguments: object,
    path: Path | None = None,
    example: Path = IMAGENET,
    ranks: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run a script of an example; ``path`` comes first where it looks for modules."""
    paths = [str(path)] if path else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(job if ranks > 1 else []), example / name, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not path:
        return warm.run(command, env=environment)
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="session")
def photo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 photographs in 4 classes."""
    directory = tmp_path_factory.mktemp("imagenet") / "photos"
    done = run_script("photos.py", directory, "--count", 200, "--classes", 4)
    assert done.returncode == 0, done.stderr
    return directory
