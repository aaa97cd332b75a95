"""What the page shows of how files were read."""

from __future__ import annotations

from tests.files_read import with_files
from tests.samples import EVERY_PROGRAM


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


def test_the_names_of_files_are_text(write_run, open_page):
    run = with_files(write_run(capabilities={**EVERY_PROGRAM, "files": "on"}), b"<i>a</i>\x1b[1m")
    section = open_page(run).page.locator("#io")
    section.locator("summary").click()
    assert "<i>a</i>\\u001b[1m" in section.text_content()


def test_a_mapped_data_set_is_said_to_be_read_unseen(write_run, open_page):
    run = with_files(write_run(capabilities={**EVERY_PROGRAM, "files": "on"}), mmap_count=3)
    text = open_page(run).page.locator("#io").text_content()
    assert "training data is mapped (3 new mappings" in text
    assert " times" not in text


def test_where_files_were_not_counted_that_is_said_or_nothing(write_run, open_page):
    run = write_run(capabilities={**EVERY_PROGRAM, "files": "no privileges"})
    assert "not counted: no privileges" in open_page(run).page.locator("#io").text_content()
    assert open_page(write_run(name="other")).page.locator("#io").count() == 0
