"""What the page took from others is what they published, and its licence goes along."""

from __future__ import annotations

import hashlib
import re

from tests.architecture.rooms import ROOT
from trainobs.analysis.view import RunView
from trainobs.report.html import STATIC, page

VENDOR = STATIC / "vendor"
OURS = {"README.md", "SHA256SUMS"}
LICENCE = (VENDOR / "LICENSE.uPlot").read_text()


def test_files_are_those_that_were_published_and_all_are_named():
    sums = dict(line.split()[::-1] for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() | OURS == {file.name for file in VENDOR.iterdir()}
    for name, expected in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected, name


def test_where_they_come_from_is_said():
    version = re.search(r"uPlot \(v([\d.]+)\)", (VENDOR / "uPlot.esm.js").read_text()).group(1)
    said = (VENDOR / "README.md").read_text()
    assert f"version {version}, MIT" in said
    assert "npm package\n`uplot`" in said


def test_the_licence_goes_along(write_run):
    assert LICENCE in page(RunView.open(write_run(30)))
    project = (ROOT / "pyproject.toml").read_text()
    assert " AND MIT" in re.search(r'^license = "(.*)"$', project, re.M).group(1)
    assert "src/trainobs/report/static/vendor/LICENSE*" in project
