"""Names of any kind, from the model and the machine to every page: none is lost, none steers."""

from __future__ import annotations

import json
import platform
import socket

import pytest
import torch
from torch import nn

from tests.tensorboard.readers import opened, tags, text
from trainobs import load_run, observe
from trainobs.cli import main

NAMES = (
    "\ud800 surrogate",
    "\x1b]0;escape\x07",
    "\u202ereversed",
    "new\nline",
    "![image](http://localhost/x)",
    "<script>alert(1)</script>",
    "a | b",
    "`tick`",
    "nul\0",
    "x" * 300,
)
HOST = "\udcff/\x1b[2J![h](http://localhost/h)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model and machine have such names."""
    patch = pytest.MonkeyPatch()
    patch.setattr(socket, "gethostname", lambda: HOST)
    patch.setattr(platform, "node", lambda: HOST)
    model = nn.ModuleDict()
    for name in NAMES:
        model.add_module(name, nn.EmbeddingBag(100, 4, sparse=True))
    place = tmp_path_factory.mktemp("names") / "run"
    with observe(run_dir=place, model=model, probes="off", embedding_every=1, quiet=True) as obs:
        for name in NAMES:
            with obs.step(), obs.phase(name):
                for bag in model.values():
                    bag(torch.arange(40).reshape(4, 10)).sum().backward()
    patch.undo()
    return place


def escaped(name):
    return name.encode("utf-8", "backslashreplace").decode()


def test_every_table_is_in_the_run_log(run):
    loaded = load_run(run)
    assert set(loaded.embeddings["table"].to_pylist()) == set(map(escaped, NAMES))
    assert len(loaded.embeddings) == len(NAMES) ** 2
    assert {table["name"] for table in json.loads((run / "run.json").read_text())["tables"]} == {
        *map(escaped, NAMES)
    }


@pytest.mark.parametrize("words", [[], ["--full"], ["--step", "2"]])
def test_no_report_steers_the_terminal(run, capsys, words):
    assert main(["report", str(run), *words]) == 0
    assert all(map(str.isprintable, capsys.readouterr().out.splitlines()))


def test_json_is_json_and_the_page_has_no_markup_of_theirs(run, capsys, tmp_path):
    assert main(["report", str(run), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert main(["report", str(run), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    assert "http://localhost" not in page


def test_tensorboard_draws_them_as_they_are(run):
    with opened("python", run / "tensorboard") as provider:
        found = [text(provider, ".", tag) for tag in tags(provider, "text").get(".", [])]
    assert any("reversed" in one for one in found)
    for one in found:
        assert "<img" not in one
        assert "<script" not in one
        assert "\x1b" not in one
        assert "\u202e" not in one
