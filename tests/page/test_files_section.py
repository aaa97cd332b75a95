"""What the page shows of how files were read."""

from __future__ import annotations

from tests.analysis.runs import write
from tests.files_read import peer_rows, with_files
from tests.samples import EVERY_PROGRAM, batch, cells
from trainobs.analysis.summary import summarize
from trainobs.cli import main
from trainobs.core.abi import FileClass, Op, Phase, Role
from trainobs.core.records import SETUP
from trainobs.report import io_text
from trainobs.report.brief_lines import LIBAIO
from trainobs.runlog.reader import RunLog


def test_the_pictures_say_the_numbers(write_run, open_page):
    run = with_files(write_run(capabilities={**EVERY_PROGRAM, "files": "on"}))
    section = open_page(run).page.locator("#io")
    assert "data read" in section.text_content()
    assert "2.00 to 2.50 times" in section.locator("table").first.text_content()
    said = [one.get_attribute("aria-label") for one in section.locator("[role=img]").all()]
    assert said[0] == (
        "data read: where the call before had ended 40 %, first of an open file 10 %, "
        "further on 30 %, before it 15 %, not known 5 %"
    )
    assert said[1] == "4 KiB: 60, 1 MiB: 40"
    assert "0: 25 %" in said
    assert "as an epoch was over, of 2 of 4 files" in section.text_content()


def test_the_names_of_files_are_text(write_run, open_page):
    run = with_files(write_run(capabilities={**EVERY_PROGRAM, "files": "on"}), b"<i>a</i>\x1b[1m")
    section = open_page(run).page.locator("#io")
    section.locator("summary").click()
    assert "<i>a</i>\\u001b[1m" in section.text_content()


def test_peers_have_names_bytes_and_phases(write_run, open_page):
    peers = peer_rows(
        (Phase.BACKWARD, Role.THREAD, b"10.0.0.2", -1, -1, 3, 750_000, -1, -1),
        (Phase.OTHER, Role.WORKER, b"10.0.0.2", -1, -1, 3, 250_000, -1, -1),
        (Phase.OTHER, Role.MAIN, b"127.0.0.1", 7000, 7001, 1, 20, -1, -1),
        (Phase.OTHER, Role.MAIN, b"127.0.0.1", 7001, 7000, 0, 0, -1, -1),
        (Phase.OTHER, Role.MAIN, b"::1", 5000, 80, 1, 10, -1, -1),
        (Phase.OTHER, Role.MAIN, b"", -1, -1, 1, 5, -1, -1),
    )
    on = {**EVERY_PROGRAM, "files": "on", "tobs_receive": "refused"}
    section = open_page(with_files(write_run(capabilities=on), peers=peers)).page.locator("#io")
    rows = section.locator("table").last.locator("tbody tr").all()
    assert [row.locator("th, td").all_inner_texts() for row in rows] == [
        ["10.0.0.2", "1 MB", "–", "0 %", "75 %", "0 %", "25 %"],
        ["itself, and its children", "20 B", "–", "0 %", "0 %", "0 %", "0 %"],
        ["[::1]:80", "10 B", "–", "0 %", "0 %", "0 %", "0 %"],
        ["others, not told apart", "5 B", "–", "0 %", "0 %", "0 %", "0 %"],
    ]


def test_a_mapped_data_set_is_said_to_be_read_unseen(write_run, open_page):
    run = with_files(write_run(capabilities={**EVERY_PROGRAM, "files": "on"}), mmap_count=3)
    text = open_page(run).page.locator("#io").text_content()
    assert "training data is mapped (3 new mappings" in text
    assert " times" not in text


def test_libaio_is_said_to_be_used_where_files_do_not_count(tmp_path, write_run, open_page):
    values = (0, Op.AIO, FileClass.OTHER, Role.MAIN, {"count": 3})
    took = {"step__duration_ns": [1e9] * 3}
    run = write(tmp_path / "aio", batch([SETUP, 0, 1], cells(3, values), **took))
    assert f"{LIBAIO}." in open_page(run).page.text_content("#observed")
    assert LIBAIO not in open_page(write_run()).page.text_content("#observed")


def test_where_files_were_not_counted_that_is_said_or_nothing(write_run, open_page):
    run = write_run(capabilities={**EVERY_PROGRAM, "files": "no privileges"})
    assert "not counted: no privileges" in open_page(run).page.locator("#io").text_content()
    assert open_page(write_run(name="other")).page.locator("#io").count() == 0


def test_a_run_killed_in_its_first_epoch_has_no_empty_tables(write_run, open_page, capsys):
    run = write_run(30, ended=False, capabilities={**EVERY_PROGRAM, "files": "on"})
    section = open_page(run).page.locator("#io")
    assert section.locator("table").count() == 0
    said = io_text.nothing(summarize(RunLog.open(run)))
    assert said in section.text_content()
    assert main(["report", str(run), "--io"]) == 0
    told = capsys.readouterr().out
    assert said in " ".join(told.split())
    assert "By kind of file" not in told
    assert "Calls about files" not in told
