from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

ROWS = [1000] * 26


def line(number: int, rng: random.Random, end: str = "\n") -> str:
    """A line whose first integer is its number; about a third of the rest is missing."""
    integers = [str(number), *(rng.choice(["", "-1", "0", "7", "1382"]) for _ in range(12))]
    categories = [rng.choice(["", f"{rng.getrandbits(32):08x}", "68fd1e64"]) for _ in range(26)]
    return "\t".join([str(number % 2), *integers, *categories]) + end


def write(path: Path, count: int, seed: int = 0) -> Path:
    rng = random.Random(seed)
    path.write_text("".join(line(number, rng) for number in range(count)))
    return path


def batches_of(dlrm: SimpleNamespace, path: Path, size: int = 64, **settings: Any) -> Any:
    return dlrm.criteo.CriteoBatches([dlrm.criteo.Part(path)], ROWS, size, **settings)


def numbers(batches: Any) -> list[int]:
    """The numbers of the lines that batches hold."""
    found = [
        batch.dense_features[:, 0].double().expm1().round().int().tolist() for batch in batches
    ]
    return sum(found, [])


def by_hand(text: bytes) -> tuple[float, list[float], list[int]] | None:
    """What a line says, the slow way; None if it is malformed."""
    cells = text.rstrip(b"\r\n").decode("latin-1").split("\t")
    cells += [""] * (40 - len(cells)) if len(cells) >= 37 else []
    good = len(cells) == 40 and re.fullmatch("[01]", cells[0])
    good = good and all(re.fullmatch("(-?[0-9]+)?", cell) for cell in cells[1:14])
    if not good or not all(re.fullmatch("([0-9a-fA-F]{8})?", cell) for cell in cells[14:]):
        return None
    dense = [np.log1p(np.float32(max(0, int(cell or 0)))) for cell in cells[1:14]]
    return float(cells[0]), dense, [int(cell, 16) if cell else -1 for cell in cells[14:]]


def spoil(text: bytes, rng: random.Random) -> bytes:
    """A line with something wrong, or with something odd that is allowed."""
    cells = text.rstrip(b"\n").split(b"\t")
    at = rng.randrange(40)
    cells[at] = rng.choice(
        [b"", b"x", b"2", b"1.5", b"0123456", b"012345678", b"ABCDEF12", b"\xff"]
    )
    cut = rng.choice([0, 0, 0, 1, 2, 3, 4, 20])
    if cut:
        cells = cells[:-cut] if rng.random() < 0.5 else [*cells, *[b""] * cut]
    return b"\t".join(cells) + rng.choice([b"\n", b"\r\n"])


@pytest.mark.parametrize("seed", range(5))
def test_parsing_agrees_with_a_parser_that_is_slow_and_plain(
    dlrm: SimpleNamespace, seed: int
) -> None:
    rng = random.Random(seed)
    lines = [line(number, rng).encode() for number in range(300)]
    for at in rng.sample(range(300), 1 + 30 * seed):
        lines[at] = spoil(lines[at], rng)
    rows, malformed = dlrm.criteo_text.parse(lines)
    expected = [by_hand(text) for text in lines]
    assert [bad.index for bad in malformed] == [i for i, row in enumerate(expected) if row is None]
    assert malformed or seed == 0
    labels, dense, categories = zip(*filter(None, expected), strict=True)
    np.testing.assert_array_equal(rows.labels, labels)
    np.testing.assert_allclose(rows.dense, dense, rtol=1e-6)
    np.testing.assert_array_equal(rows.categories, np.array(categories).T)


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        ("", "1 columns, not 40"),
        ("\t".join(["0"] * 36), "36 columns, not 40"),
        ("\t".join(["0"] + [""] * 40), "41 columns, not 40"),
        ("\t".join(["2"] + [""] * 39), "label is '2'"),
        ("\t".join([""] * 40), "label is ''"),
        ("\t".join(["0", "", "1.5"] + [""] * 37), "I2 is '1.5'"),
        ("\t".join(["0"] + [""] * 38 + ["68fd1e6"]), "C26 is '68fd1e6'"),
        ("\t".join(["0"] + [""] * 13 + ["68fd1e6g"] + [""] * 25), "C1 is '68fd1e6g'"),
        ("\t".join(["0"] + [""] * 38 + ["68fd\r1e64"]), "C26 is '68fd\\r1e64'"),
    ],
)
def test_it_says_what_is_wrong(dlrm: SimpleNamespace, spoiled: str, reason: str) -> None:
    good = line(0, random.Random(0)).encode()
    rows, malformed = dlrm.criteo_text.parse([good, spoiled.encode() + b"\n", good])
    assert [tuple(bad) for bad in malformed] == [(1, reason)]
    assert len(rows.labels) == 2


def test_a_carriage_return_that_makes_two_lines_of_one_is_no_line(dlrm: SimpleNamespace) -> None:
    good = line(0, random.Random(0)).encode()
    rows, malformed = dlrm.criteo_text.parse([good.strip(b"\n") + b"\r" + good, good])
    assert [bad.index for bad in malformed] == [0]
    assert len(rows.labels) == 1


def test_tabs_that_an_editor_took_are_put_back(dlrm: SimpleNamespace) -> None:
    whole = b"\t".join([b"1", *[b"3"] * 13, *[b"68fd1e64"] * 23, b"", b"", b""]) + b"\n"
    (expected, nothing), (found, bad) = map(
        dlrm.criteo_text.parse, ([whole], [whole.rstrip() + b"\n"])
    )
    assert nothing == bad == []
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


# Blocks of 700 bytes hold three lines; a range may be smaller than a line.
@pytest.mark.parametrize("shares", [1, 2, 3, 4, 7, 500])
@pytest.mark.parametrize("block_bytes", [1, 700, 4 << 20])
def test_every_line_is_in_one_share(
    dlrm: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: int,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(dlrm.criteo, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path / "train.txt", 60)
    found = [
        numbers(batches_of(dlrm, path, size=7, rank=rank, world_size=shares))
        for rank in range(shares)
    ]
    assert sum(found, []) == list(range(60))


def test_cuts_at_every_byte_lose_nothing(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    path = write(tmp_path / "train.txt", 4)
    path.write_bytes(path.read_bytes() + b"\n\n")  # the shortest lines there are

    def read(start: int, stop: int) -> list[bytes]:
        with path.open("rb") as file:
            at = dlrm.criteo.skip_to_line(file, start)
            return [text for block in dlrm.criteo.read_blocks(file, at, stop) for text in block]

    size = path.stat().st_size
    whole = path.read_bytes().splitlines(keepends=True)
    assert len(whole) == 6
    assert all(read(0, cut) + read(cut, size) == whole for cut in range(size + 1))


def test_loader_workers_and_ranks_share_the_lines(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    path = write(tmp_path / "train.txt", 500)
    found: list[int] = []
    for rank in range(2):
        batches = batches_of(dlrm, path, rank=rank, world_size=2)
        found += numbers(DataLoader(batches, batch_size=None, num_workers=2))
    assert sorted(found) == list(range(500))


def test_days_and_packed_days_are_read_once(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    text = write(tmp_path / "all", 90).read_bytes().splitlines(keepends=True)
    (tmp_path / "day_0").write_bytes(b"".join(text[:30]))
    for day in (1, 2):
        with gzip.open(tmp_path / f"day_{day}.gz", "wb") as file:
            file.write(b"".join(text[30 * day : 30 * day + 30]))
    parts = [dlrm.criteo.Part(tmp_path / name) for name in ("day_0", "day_1.gz", "day_2.gz")]
    found = [
        numbers(dlrm.criteo.CriteoBatches(parts, ROWS, 64, rank=rank, world_size=2))
        for rank in range(2)
    ]
    # Half of day_0 and a packed day each.
    assert [len(lines) for lines in found] == pytest.approx([45, 45], abs=2)
    assert sorted(sum(found, [])) == list(range(90))


def test_the_last_seventh_is_for_validation(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    path = write(tmp_path / "train.txt", 700)
    train, val = (
        numbers(dlrm.criteo.CriteoBatches(parts, ROWS, 64)) for parts in dlrm.criteo.split([path])
    )
    assert train + val == list(range(700))
    assert len(val) == pytest.approx(100, abs=5)
    days = [dlrm.criteo.Part(tmp_path / f"day_{day}") for day in range(3)]
    assert dlrm.criteo.split([day.path for day in days]) == (days[:2], days[2:])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_line_ends_do_not_matter(
    dlrm: SimpleNamespace, tmp_path: Path, end: str, final: bool
) -> None:
    rng = random.Random(0)
    text = "".join(line(number, rng, end) for number in range(20))
    (tmp_path / "train.txt").write_bytes((text if final else text.rstrip()).encode())
    batches = batches_of(dlrm, tmp_path / "train.txt")
    assert numbers(batches) == list(range(20))
    assert batches.malformed_count == 0


def test_an_empty_file_has_no_batches(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("")
    assert list(batches_of(dlrm, tmp_path / "train.txt")) == []


def test_missing_values_have_row_0_and_no_other_has(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    rng = random.Random(3)
    text = [line(number, rng) for number in range(200)]
    (tmp_path / "train.txt").write_text("".join(text))
    (batch,) = batches_of(dlrm, tmp_path / "train.txt", size=200)
    ids = batch.sparse_features.values().view(26, 200).numpy()
    cells = np.array([one.rstrip("\n").split("\t")[14:] for one in text]).T
    np.testing.assert_array_equal(ids == 0, cells == "")
    assert ids.max() < 1000
    assert batch.sparse_features.lengths().tolist() == [1] * 26 * 200
    # One value has one row in a column, and not the same in all.
    rows = {int(row[0]) for row in (ids[c][cells[c] == "68fd1e64"] for c in range(26))}
    assert all(len(set(ids[c][cells[c] == "68fd1e64"])) == 1 for c in range(26))
    assert len(rows) > 20


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """1,000 lines, of which 100, 600 and 900, counted from 1, are malformed."""
    path = write(tmp_path / "train.txt", 1000)
    text = path.read_text().splitlines()
    for number in (100, 600, 900):
        text[number - 1] = "1\tnot a line"
    path.write_text("\n".join(text) + "\n")
    return path


def test_malformed_lines_are_named_skipped_and_counted(
    dlrm: SimpleNamespace, spoiled: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batches = batches_of(dlrm, spoiled)
    found = numbers(DataLoader(batches, batch_size=None, num_workers=2))
    assert sorted(found) == sorted(set(range(1000)) - {99, 599, 899})
    assert batches.malformed_count == 3
    told = capfd.readouterr().err
    assert sorted(re.findall(r"train.txt, line (\d+): 2 columns, not 40", told)) == [
        "100",
        "600",
        "900",
    ]


def test_after_a_few_they_are_only_counted(
    dlrm: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "train.txt", 200)
    path.write_text(path.read_text() + "x\n" * 50)
    batches = batches_of(dlrm, path)
    assert numbers(batches) == list(range(200))
    assert batches.malformed_count == 50
    assert len(re.findall("malformed", capfd.readouterr().err)) == dlrm.criteo.TOLD_LINES


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_stops_at_the_first(dlrm: SimpleNamespace, spoiled: Path, workers: int) -> None:
    batches = batches_of(dlrm, spoiled, strict=True)
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers))
    with pytest.raises(
        ValueError, match=r"(?s)malformed.*found: .*train.txt, line (100|600): 2 col"
    ):
        list(loader)
    if workers:
        loader._shutdown_workers()  # the exception keeps the iterator, and it its workers


def test_what_is_not_criteo_at_all_is_refused(dlrm: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("1,2,3\n" * 200)
    with pytest.raises(ValueError, match="(?s)not in Criteo's format.*has 1 columns, not 40"):
        list(batches_of(dlrm, tmp_path / "train.txt"))


@pytest.mark.parametrize("cut", [5, 400])
def test_a_packed_file_that_is_cut_off_is_named(
    dlrm: SimpleNamespace, tmp_path: Path, cut: int
) -> None:
    packed = gzip.compress(write(tmp_path / "day_0", 100).read_bytes())
    (tmp_path / "day_0.gz").write_bytes(packed[:-cut])
    with pytest.raises(
        ValueError, match=r"(?s)cannot be unpacked.*day_0\.gz: Compressed file ended"
    ):
        list(batches_of(dlrm, tmp_path / "day_0.gz"))
