"""TensorBoards with the tab, installed as pip would, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.architecture.rooms import ROOT, SOURCE

STARTS_WITHIN_S = 60
STORED_RUN = ROOT / "tests" / "runlog" / "old"
ADDRESS = re.compile(r"TensorBoard [\d.]+\S* at http://\S+:(\d+)/")


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json", self
        return json.loads(self.body)

    def error(self) -> str:
        """The text of an error, which is all that there is then."""
        answer = self.json()
        assert list(answer) == ["error"], answer
        return answer["error"]


class Board(NamedTuple):
    """A TensorBoard that is up."""

    port: int
    output: Path

    def get(self, path: str, **headers: str) -> Response:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return Response(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.headers, error.read())

    def tab(self, path: str, **headers: str) -> Response:
        """What the tab gets; every answer forbids to guess its type."""
        answer = self.get(f"/data/plugin/trainobs{path}", **headers)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer

    def data_of(self, run: str, **headers: str) -> Response:
        return self.tab(f"/data?run={quote(run)}", **headers)


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """The wheel of the tab, unpacked, with the entry point by which TensorBoard finds it."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    package = ROOT / "packages" / "trainobs-tensorboard"
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@contextmanager
def serving(command: list[str], logs: Path, output: Path, **environment: str) -> Iterator[Board]:
    """A TensorBoard; `output` is the file that it may complain in."""
    command = [*command, "--logdir", str(logs), "--port=0", "--load_fast=false"]
    with output.open("wb") as file:
        environment = {**os.environ, **environment}
        board = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (found := ADDRESS.search(output.read_text())):
            assert board.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        yield Board(int(found[1]), output)
        assert board.poll() is None, output.read_text()
    finally:
        board.terminate()
        board.wait()


@pytest.fixture(scope="module")
def start(installed, tmp_path_factory) -> Iterator[Callable[..., Board]]:
    """Starts a TensorBoard; `broken` is a package that cannot be imported."""
    command = [sys.executable, "-m", "tensorboard.main"]

    def board(logs: Path, broken: str | None = None) -> Board:
        folder = tmp_path_factory.mktemp("board")
        if broken:
            (folder / f"{broken}.py").write_text("raise ImportError('undefined symbol: here')\n")
        paths = os.pathsep.join(map(str, (folder, installed, SOURCE)))
        board = serving(command, logs, folder / "output", PYTHONPATH=paths)
        return boards.enter_context(board)

    with ExitStack() as boards:
        yield board
