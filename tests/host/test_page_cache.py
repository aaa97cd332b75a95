"""What of some files the page cache holds, against what the test put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainobs.host import page_cache
from trainobs.host.page_cache import DataSetCache

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 64


def has_call() -> bool:
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 5)


needs_call = pytest.mark.skipif(not has_call(), reason="cachestat(2) is of Linux 6.5")


def cold(file: Path, pages: int = PAGES) -> Path:
    """A file of which nothing is in memory."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(pages * PAGE))
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return file


def read_pages(file: Path, pages: range) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    for page in pages:
        os.pread(descriptor, PAGE, page * PAGE)
    os.close(descriptor)


@needs_call
def test_pages_that_were_read_are_there(tmp_path: Path) -> None:
    files = [cold(tmp_path / "data" / "deep" / f"{number}") for number in range(3)]
    cache = DataSetCache([tmp_path / "data"])
    found = cache.look()
    assert found is not None
    assert found.cached_bytes == 0
    assert (found.file_count, found.is_all, found.sampled_count) == (3, True, 3)
    assert found.sampled_bytes == 3 * PAGES * PAGE
    read_pages(files[1], range(0, PAGES, 4))
    after = cache.look()
    assert after is not None
    assert after.cached_bytes == PAGES // 4 * PAGE
    assert after.at_ns > found.at_ns


@needs_call
def test_a_part_of_a_page_is_no_more_than_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 10)
    found = DataSetCache([file]).look()
    assert found is not None
    assert (found.sampled_bytes, found.cached_bytes, found.dirty_bytes) == (10, 10, 10)


@needs_call
def test_a_file_is_one_file_by_whatever_name(tmp_path: Path) -> None:
    here, elsewhere = cold(tmp_path / "data" / "a"), cold(tmp_path / "b")
    for number, target in enumerate((here, elsewhere, elsewhere, tmp_path / "gone")):
        (tmp_path / "data" / f"link{number}").symlink_to(target)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for roots in ([tmp_path / "data"], [tmp_path / "link", here], [tmp_path, tmp_path / "data"]):
        found = DataSetCache(roots).look()
        assert found is not None
        assert (found.file_count, found.sampled_bytes) == (2, 2 * PAGES * PAGE)


@needs_call
def test_of_many_files_a_sample_is_asked_about(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}").write_bytes(b"x")
    found = DataSetCache([tmp_path], sample=8).look()
    assert found is not None
    assert (found.file_count, found.is_all, found.sampled_count) == (40, True, 8)


@needs_call
def test_a_walk_that_takes_too_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"{number}").write_bytes(b"x")
    clock = iter(range(1000))
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: next(clock) / 100)
    found = DataSetCache([tmp_path]).look()
    assert found is not None
    assert not found.is_all
    assert found.file_count < 40


def test_a_root_below_one_that_is_far_away_is_walked_and_so_is_the_root_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert next(DataSetCache([Path("/")])._walk())
    far, near = tmp_path / "far", tmp_path / "far" / "near"
    near.mkdir(parents=True)
    (near / "a").write_bytes(b"x")
    mounts = [(str(near), True), (str(far), False)]
    monkeypatch.setattr(page_cache, "_local_mounts", lambda: mounts)
    assert list(DataSetCache([far, near])._walk()) == [str(near / "a")]


@pytest.mark.parametrize("what", ["a kernel without the call", "a file system far away", "no file"])
def test_nothing_is_said_where_nobody_tells(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what != "no file":
        (tmp_path / "a").write_bytes(b"x")
    if what == "a kernel without the call":
        monkeypatch.setattr(page_cache, "CACHESTAT", 4095)
    if what == "a file system far away":
        monkeypatch.setattr(page_cache, "_LOCAL", frozenset())
    assert DataSetCache([tmp_path]).look() is None
