"""Links in the documentation lead somewhere, and the catalogue's page is the catalogue's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainobs.core.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
NOT_OURS = ("build", "runs", "vendor")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)")
ELSEWHERE = re.compile(r"^[a-z]+:")
HEADING = re.compile(r"^#+ (.+?) *#*$", re.MULTILINE)


def pages() -> Iterator[Path]:
    """Pages of this repository; what is installed into it is not looked at."""
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name[0] != "." and name not in NOT_OURS]
        yield from (Path(folder, name) for name in names if name.endswith(".md"))


def text_of(page: Path) -> str:
    """A page without its blocks of code, in which a `#` is no heading."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text_of(page)))
    return {title.replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Links of a page to a file or heading that does not exist."""
    broken = []
    for link in LINK.findall(text_of(page)):
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", sorted(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# What it costs\n"
        "[good](#what-it-costs) [good](page.md#what-it-costs) [elsewhere](https://example.org/x)\n"
        "[bad](gone.md) ![bad](gone.png) [bad](page.md#gone)\n"
        "```\n[code](gone.txt)\n# no heading\n```\n"
    )
    assert broken_links(page) == ["gone.md", "gone.png", "page.md#gone"]


def test_the_metrics_page_is_up_to_date():
    page = subprocess.run(
        [sys.executable, "-m", "trainobs.core.catalogue_page"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "metrics.md").read_text() == page, "run: make docs"
    assert [metric.name for metric in CATALOGUE if f"`{metric.name}`" not in page] == []
