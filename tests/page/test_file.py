"""The page of a run as one file, in Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.runs import of_64_ranks, with_tables
from tests.samples import busy_run
from trainobs.analysis.no_steps import reason
from trainobs.analysis.step_time import TAKING
from trainobs.analysis.summary import summarize
from trainobs.core.text import duration, percent, size
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import SEAL_STEPS


def numbers(opened, selector: str) -> dict[str, list[str]]:
    """First cell of each row of a table -> the others."""
    rows = opened.page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    return {first: rest for first, *rest in rows}


def test_a_run_is_summed_up_at_the_top(busy):
    verdict = summarize(RunLog.open(busy.run))["verdict"]["run"]
    opened = busy.opened
    assert opened.page.text_content("h1") == "run"
    assert opened.page.text_content("#verdict .kind") == verdict["text"][0]
    top = opened.page.locator("#step .bar").bounding_box()
    assert top["y"] + top["height"] < 900, "verdict and bar are on the first screen"


def test_a_run_of_a_trainer_is_called_by_the_directory_of_its_logger(write_run, open_page):
    page = open_page(write_run(20, "version_3/trainobs")).page
    assert page.text_content("h1") == "version_3/trainobs"
    assert page.title() == "trainobs: version_3/trainobs"


def test_a_run_without_an_end_tells_when_its_newest_step_ended(write_run, open_page):
    header = open_page(write_run(40, ended=False)).page.text_content("header")
    # The samples' clock is in 2023, and their steps begin hours after it.
    assert re.search(r"killed, or still running; the newest step ended on 11/\d+/2023, ", header)


def test_the_parts_of_a_step_are_those_of_the_record_and_add_up(busy):
    steps, opened = busy.steps, busy.opened
    rows = numbers(opened, "#step .beside > div:first-child")
    later = slice(1, None)  # the first step is left out
    whole = steps.columns["step/duration_ns"][later].mean()
    for label, name in {"forward": "phase/forward_ns", "backward": "phase/backward_ns"}.items():
        mean = steps.columns[name][later].mean()
        assert rows[label][1] == percent(mean / whole)
        assert float(rows[label][0].split()[0]) == pytest.approx(mean / 1e6, rel=5e-3)
    shares = [float(cells[1].removesuffix(" %")) for cells in rows.values()]
    assert sum(shares) == pytest.approx(100, abs=len(shares) / 2)
    assert duration(whole) in opened.page.text_content("#step caption")


def test_a_long_first_step_is_told_beside_the_others(write_run, open_page):
    steps = busy_run(40)
    steps.columns["step/duration_ns"][0] = 100e9
    told = open_page(write_run(steps=steps)).page.text_content("#steps")
    assert re.search(r"the slowest took .+\. The first took 100 s, \d\d % of the time", told)


def test_what_is_waited_for_is_told_as_in_the_report(busy):
    step = summarize(RunLog.open(busy.run))["step"]
    rows = numbers(busy.opened, "#step .beside > div:first-child")
    assert rows["taking batches over"][0] == duration(step["parts"][TAKING])
    waits = [float(cells[1].split()[0]) for name, cells in rows.items() if "waiting" in name]
    waited = 100 * step["parts"]["loader/wait_ns"] / step["mean_ns"]
    assert sum(waits) == pytest.approx(waited, abs=0.6)
    starts = step["waited"]["loader/start_stop_ns"]
    assert rows["waiting: loaders starting and ending"][0] == duration(starts)


def test_zooming_in_shows_the_numbers_of_those_steps(busy):
    steps, opened = busy.steps, busy.opened
    plot = opened.page.locator("#steps .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + 0.5 * box["width"], middle)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    opened.page.mouse.up()
    caption = opened.page.locator("#step caption", has_text="of steps")
    caption.first.wait_for()
    first, last = map(int, re.findall(r"steps (\d+) to (\d+)", caption.first.text_content())[0])
    assert 140 < first < 160 < 170 < last < 190
    mean = steps.columns["step/duration_ns"][first : last + 1].mean()
    assert duration(mean) in caption.first.text_content()
    opened.page.get_by_role("button", name="whole run").click()
    opened.page.locator("#step caption", has_text="without the first").wait_for()


def test_the_mouse_tells_the_step_whose_bar_it_is_on_up_to_the_last(write_run, open_page):
    opened = open_page(write_run(9))
    plot = opened.page.locator("#steps .u-over")
    plot.scroll_into_view_if_needed()
    size = plot.bounding_box()
    drawn = "(c, x) => c.getContext('2d').getImageData(x * c.width, 0.8 * c.height, 1, 1).data[3]"
    for nth in range(8):  # of step 0 nothing is shown
        for inside in (0.1, 0.9):
            x = (nth + inside) / 8 * size["width"]
            plot.hover(position={"x": x, "y": size["height"] / 2})
            told = opened.page.text_content("#steps .readout")
            assert told.startswith(f"step {nth + 1}: ")
    canvas = opened.page.locator("#steps canvas")
    frame = canvas.bounding_box()
    at = (size["x"] + size["width"] * 0.97 - frame["x"]) / frame["width"]
    assert canvas.evaluate(drawn, at) == 255, "the last step is drawn"


def test_two_steps_are_told_as_in_the_report_and_one_as_the_only_one(write_run, open_page):
    for count, title in ((2, "A mean step, without the first"), (1, "The only step")):
        run = write_run(count, str(count))
        step = summarize(RunLog.open(run))["step"]
        page = open_page(run).page
        assert page.text_content("#step caption") == f"{title}: {duration(step['mean_ns'])}"
        assert "95 %" not in page.text_content("#steps")


def test_tables_are_told_with_what_was_looked_up_and_read(tmp_path, open_page):
    told = numbers(open_page(with_tables(tmp_path / "run")), "#tables")
    largest = told.pop("item")
    assert [cells[2:] for cells in told.values()] == [["8", "512 B", "host"]] * 12
    assert largest[2:] == ["unknown", "unknown", "hbm"]


def test_every_step_can_be_read_with_the_keyboard(busy):
    steps, opened = busy.steps, busy.opened
    opened.page.locator("#steps figure").focus()
    readout = opened.page.locator("#steps .readout")
    keys = ("Home", "ArrowRight", "ArrowRight")
    for step, key in enumerate(keys, 1):  # the first one is left out
        opened.page.keyboard.press(key)
        text = duration(steps.columns["step/duration_ns"][step])
        assert readout.text_content().startswith(f"step {step}: {text}")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#lanes-of", has_text="Steps 0 to").wait_for()


def test_the_lanes_tell_who_made_each_batch(busy):
    steps, opened = busy.steps, busy.opened
    opened.page.locator("#lanes summary").first.click()
    opened.page.wait_for_selector("#lanes details tbody tr")
    rows = opened.page.eval_on_selector_all(
        "#lanes details tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    assert rows
    batches = {int(batch["for_step"]): batch for batch in steps.batches}
    for step, worker, took, *_, slowest in rows:
        batch = batches[int(step.removeprefix("step "))]
        assert worker == f"worker {batch['worker']}"
        made = duration(int(batch["end_ns"] - batch["begin_ns"]))
        assert took == made
        assert slowest.endswith(batch["slowest_file"].decode())


def test_a_batch_is_told_in_words_and_read_aloud_where_a_key_chose_it(write_run, open_page):
    steps = busy_run(30)
    steps.batches["slowest_file"] = "\u202egpj.<b>".encode()
    opened = open_page(write_run(steps=steps))
    readout = opened.page.locator("#lanes .readout")
    opened.page.locator("#lanes canvas").click(position={"x": 400, "y": 60})
    told = readout.text_content()
    words = ["for step ", "made by worker ", "took ", "reads from storage ", "has no CPU ", "read "]
    assert re.match(", ".join(f"{one}[^,]+" for one in words[:5]), told)
    assert told.endswith(": \\u202egpj.<b>")
    assert readout.get_attribute("aria-live") == "off"
    opened.page.locator("#lanes figure").focus()
    opened.page.keyboard.press("ArrowRight")
    assert readout.text_content() != told
    assert readout.get_attribute("aria-live") == "polite"


def test_what_keys_reach_has_a_name_and_mouse_moves_are_not_read_aloud(write_run, open_page):
    steps = busy_run(30)
    opened = open_page(*{write_run(rank=rank, steps=steps, world_size=2) for rank in range(2)})
    names = "all => all.map(one => one.ariaLabel || one.textContent)"
    reached = opened.page.eval_on_selector_all("[tabindex], button, summary, select", names)
    assert len(reached) > 10
    assert all(reached)
    for place in ("#steps", "#ranks", "#storage"):
        readout = opened.page.locator(f"{place} .readout").first
        opened.page.locator(f"{place} figure").first.focus()
        opened.page.keyboard.press("ArrowRight")
        assert readout.get_attribute("aria-live") == "polite"
        opened.page.locator(f"{place} canvas").first.hover(force=True)
        assert readout.get_attribute("aria-live") == "off"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(busy, scheme):
    opened = busy.opened
    opened.page.emulate_media(color_scheme=scheme)
    style = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    assert opened.page.locator("th:empty").count() == 0, "a header without a name"
    for place in ("h1", "#verdict .kind", "td", ".muted"):
        ink, paper = opened.page.eval_on_selector(place, style)
        assert contrast(ink, paper) >= 4.5, (place, ink, paper)  # WCAG 2.2, level AA


def contrast(*colours: str) -> float:
    """Contrast of two colours by WCAG."""
    lights = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m![x](http://x/y.png)\n\ud800</script>"


def test_names_show_as_text(write_run, open_page):
    host = {"hostname": HOSTILE, "kernel": "<b>6</b>"}
    run = write_run(30, "<img src=x onerror=alert(1)>", host=host)
    opened = open_page(run)
    assert opened.page.text_content("h1") == "<img src=x onerror=alert(1)>"
    text = opened.page.text_content("header")
    assert "<script>alert(1)</script>\\u202e\\u001b[31m![x](http://x/y.png)\\u000a\\ud800" in text
    assert opened.page.locator("main img, main b:has-text('6')").count() == 0


def test_a_run_without_probes_says_what_is_unknown(write_run, open_page):
    steps = busy_run(40)
    timed = {
        name: column
        for name, column in steps.columns.items()
        if name.startswith(("step/", "phase/")) or name == "loader/wait_ns"
    }
    steps = replace(steps, cells=None, columns=timed, batches=steps.batches[:0])
    opened = open_page(write_run(steps=steps, level="timing", capabilities={}))
    assert "observed by timing alone;" in opened.page.text_content("header")
    assert "waiting for data" in numbers(opened, "#step")
    assert opened.page.locator("#storage").count() == 0
    assert "were not measured" in opened.page.text_content("#observed")


def test_an_empty_run_says_why_as_the_report_does(write_run, open_page):
    run = write_run(0)
    text = open_page(run).page.text_content("main")
    why = reason(summarize(RunLog.open(run)))
    assert f"No step was recorded. {why}" in text


def test_what_is_known_of_one_step_alone_is_a_number_and_no_chart(write_run, open_page):
    opened = open_page(write_run(1))
    assert "1 step, on node7" in opened.page.text_content("header")
    assert opened.page.locator("#storage canvas").count() == 0
    read = busy_run(1).columns["io/data_read_bytes"][0]
    assert opened.page.text_content("#storage .legend") == f"step 0: {size(read)}"
    opened.page.locator("#storage figure").first.focus()
    opened.page.keyboard.press("ArrowRight")
    assert "step 0: Data read" in opened.page.text_content("#storage .readout >> nth=0")


def test_what_the_log_lacks_is_told_apart_from_what_tensorboard_lacks(write_run, open_page):
    run = write_run(5, ended=False)
    of_log, of_curves = "steps not in the run log", "steps not in TensorBoard"
    rows = open_page(run).page.locator("#observed tr")
    assert rows.filter(has_text=of_log).locator("td").text_content() == "unknown"  # or killed
    lost = {"outcome": "ok", "lost_steps": {"runlog": 3, "tensorboard": 50}}
    file = run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"summary": lost}))
    rows = open_page(run).page.locator("#observed tr")
    assert rows.filter(has_text=of_log).locator("td").text_content() == "3"
    assert rows.filter(has_text=of_curves).locator("td").text_content() == "50"


STORED = {"dropped_steps": 7, "stored_steps": SEAL_STEPS + 5}


@pytest.mark.parametrize(("end", "told"), [(STORED, str(3 + 7 + SEAL_STEPS)), ({}, "unknown")])
def test_steps_whose_file_is_gone_are_not_in_the_log(write_run, open_page, end, told):
    file = write_run(SEAL_STEPS + 5) / "run.json"
    (file.parent / "rank=0" / "steps-00000.parquet").unlink()
    lost = {"outcome": "ok", "lost_steps": {"runlog": 3}, **end}
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"summary": lost}))
    row = open_page(file.parent).page.locator("#observed tr", has_text="steps not in the run log")
    assert row.locator("td").text_content() == told


def test_of_loaders_only_what_people_choose_is_told(write_run, open_page):
    loader = {"workers": 2, "pin_memory": False, "batches": 7, "prefetch_factor": None}
    opened = open_page(write_run(5, loaders=[{**loader, "serial": 1}]))
    table = opened.page.locator("#observed table", has_text="Loaders")
    assert table.locator("th").all_text_contents() == ["workers", "batches", "pin memory", "2"]
    assert table.locator("td").all_text_contents() == ["7", "no"]


def test_a_run_with_a_period_and_no_steps_tells_it(write_run, open_page):
    spell = {"begin_ns": 5 * 10**9, "end_ns": 9 * 10**9, "period_ns": 20e6, "count": 200}
    periods = [
        {**spell, "low_ns": 19e6, "high_ns": 21e6},
        {**spell, "begin_ns": 9 * 10**9, "end_ns": 10**10, "low_ns": None, "high_ns": None},
    ]
    settings = {"attached": {"pid": 7, "steps": "unknown", "periods": periods}}
    opened = open_page(write_run(0, settings=settings))
    cells = opened.page.locator("#periods tbody tr").all_text_contents()
    assert cells == ["0 ns4 s5020 ms19 ms to 21 ms", "4 s1 s5020 ms\u2013"]
    assert "nobody knows its steps" in opened.page.text_content("main")
    assert "obs.loader" not in opened.page.text_content("main")


def test_of_many_rows_of_a_table_the_first_are_shown_and_the_rest_on_request(write_run, open_page):
    steps = busy_run(1000)
    blocked = np.arange(1000, dtype=float) * 1e6 + 1e6
    columns = steps.columns | {"phase/checkpoint_ns": blocked}
    page = open_page(write_run(steps=replace(steps, columns=columns))).page
    rows = page.locator("#checkpoints tbody tr")
    assert rows.count() == 200
    assert rows.first.text_content().startswith("step 9991 s")
    page.locator("#checkpoints summary").click()
    page.wait_for_function("document.querySelectorAll('#checkpoints tbody tr').length == 1000")
    assert rows.last.text_content().startswith("step 0")


def test_a_page_keeps_within_its_size(write_run, tmp_path, open_page):
    run = write_run(20_000)
    open_page(run, most_bytes=400_000)
    assert (tmp_path / "page.html").stat().st_size < 400_000 + 400_000  # and its modules


def test_64_ranks_are_drawn(write_run, open_page):
    steps = busy_run(60)
    runs = {write_run(rank=rank, steps=steps, world_size=64) for rank in range(64)}
    opened = open_page(*runs)
    opened.page.locator("#ranks canvas").hover(position={"x": 5, "y": 5})
    assert opened.page.text_content("#ranks .readout").startswith("rank 0, step ")
    assert len(numbers(opened, "#ranks")) == 64
    scale = opened.page.text_content("#ranks .legend")
    assert re.search(r"[\d.]+ ms a step.*[\d.]+ ms or more.*rank 0 above, rank 63 below", scale)


def test_the_rank_that_others_wait_for_is_told_with_a_command_that_works(tmp_path, open_page):
    opened = open_page(of_64_ranks(tmp_path / "run"))
    told = opened.page.text_content("#ranks p:has-text('holds the others up')")
    assert told == (
        "Rank 3 holds the others up for 59 ms a step, 59 % of it. "
        "For its page: trainobs report RUN --rank 3 --html FILE"
    )


def test_the_command_writes_the_page(write_run, tmp_path, capsys):
    from trainobs.cli import main

    run, file = write_run(30), tmp_path / "shared.html"
    assert main(["report", str(run), "--html", str(file)]) == 0
    assert re.fullmatch(rf"{file}: \d+ kB, to be opened.*\n", capsys.readouterr().out)
    pieces = re.search(r'id="pieces">(.*?)</script>', file.read_text()).group(1)
    assert {"head", "summary"} <= json.loads(pieces).keys()
    assert main(["report", str(run), "--html", str(tmp_path / "none" / "x.html")]) == 2
    assert "The page cannot be written." in capsys.readouterr().err
