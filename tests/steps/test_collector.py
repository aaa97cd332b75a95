"""The collector: kernel rows joined with the steps they belong to, none lost without a count."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.steps.ticking import Ticking
from trainobs.core.abi import BUCKETS, CELL, CELLS_SHAPE, RING, FileClass, Op, Phase, Role
from trainobs.core.embedding_table import LOOKUP_ROW
from trainobs.core.records import SETUP
from trainobs.steps import collector as module
from trainobs.steps.collector import SETTLE_NS, Collector

READ = (Op.READ, FileClass.DATA, Role.WORKER)


class Rows(SimpleNamespace):
    """The kernel's memory, into which the test writes as the kernel would."""

    def __init__(self) -> None:
        super().__init__(
            rows=np.zeros((RING, *CELLS_SHAPE), CELL),
            touched=np.zeros(CELLS_SHAPE, np.uint8),
            latency=np.zeros((RING, BUCKETS), np.uint64),
        )
        self.gone_ns: int | None = None

    def gone_since_ns(self) -> int | None:
        return self.gone_ns

    def read(self, serial: int, size: int, *, bucket: int = 10) -> None:
        """One read of training data in a step."""
        self.add(serial, READ, size)
        self.latency[serial % RING, bucket] += 1

    def add(self, serial: int, at: tuple[Op, FileClass, Role], size: int) -> None:
        """One event of some bytes."""
        self.touched[at] = 1
        cell = self.rows[(serial % RING, *at)]
        cell["count"] += 1
        cell["bytes"] += size


class Run:
    """A clock, the kernel's rows, and the collector of both."""

    def __init__(self, **options: object) -> None:
        self.ticking = Ticking()
        self.kernel = Rows()
        self.collector = Collector(
            self.ticking.clock, self.kernel, now=lambda: self.ticking.ns, **options
        )

    def steps(self, count: int, *, size: int = 0, collect: bool = True) -> None:
        """Steps of 1 ms, with a read in each if it has a size."""
        for _ in range(count):
            self.ticking.step(work=1_000_000)
            if size:
                self.kernel.read(self.ticking.clock.serial, size)
            if collect:
                self.collector.collect(settle=False)


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_step_that_closed_just_now_waits_until_its_adds_have_settled(run):
    run.steps(3, collect=False)
    run.ticking.clock.begin_batch()  # closes the third one now
    run.collector.collect()
    assert run.collector.table().step.tolist() == [SETUP, 0, 1]
    run.ticking.after(SETTLE_NS - 1)
    run.collector.collect()
    assert run.collector.table() is None
    run.ticking.after(1)
    run.collector.collect()
    assert run.collector.table().step.tolist() == [2]


def test_at_the_end_nothing_waits(run):
    run.steps(3, collect=False)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    assert run.collector.table().step.tolist() == [SETUP, 0, 1, 2]


def test_each_step_gets_its_own_reads_however_often_the_ring_comes_round(run):
    for size in range(1, 3 * RING):
        run.steps(1, size=size)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    table = run.collector.table()
    assert table.columns["io/data_read_bytes"].tolist() == list(range(3 * RING))
    assert table.cells.rows()[(slice(None), *READ)]["count"].tolist() == [0] + [1] * (3 * RING - 1)
    assert table.latency[1:, 10].tolist() == [1] * (3 * RING - 1)
    assert run.collector.late_count == 0


def test_what_is_read_in_a_fetch_that_finds_no_batch_counts_for_the_step_before(run):
    run.steps(1, size=100)
    run.ticking.clock.begin_fetch()
    run.kernel.read(run.ticking.clock.serial, 50, bucket=20)
    run.ticking.clock.end_fetch()
    run.ticking.clock.cancel()
    run.steps(1, size=7)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    table = run.collector.table()
    assert table.columns["io/data_read_bytes"].tolist() == [0, 150, 7]
    assert table.latency[:, [10, 20]].tolist() == [[0, 0], [1, 1], [1, 0]]


def test_a_kind_of_event_that_comes_up_later_is_in_its_own_steps_only(run):
    run.steps(RING + 5, size=1)
    write = (Op.WRITE, FileClass.CHECKPOINT, Role.MAIN)
    first = run.ticking.clock.serial + 1
    for size in (100, 200):
        run.steps(1, size=1, collect=False)
        run.kernel.add(run.ticking.clock.serial, write, size)
    run.steps(RING, size=1)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    rows = run.collector.table().cells.rows()
    expected = np.zeros(len(rows))
    expected[first : first + 2] = 100, 200
    assert rows[(slice(None), *write)]["bytes"].tolist() == expected.tolist()
    assert rows[(slice(1, None), *READ)]["count"].tolist() == [1] * (len(rows) - 1)
    assert run.collector.late_count == 0


def test_the_p99_is_that_of_the_slowest_hundredth(run):
    run.ticking.step()
    for latency in [10] * 98 + [20] * 2:
        run.kernel.read(1, 1, bucket=latency)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    p99 = run.collector.table().columns["block/read_p99_ns"]
    assert np.isnan(p99[0])
    assert 2**20 <= p99[1] <= 2**21


def test_events_that_come_after_their_step_was_copied_are_counted(run):
    run.steps(10, size=1)
    for _ in range(5):
        run.kernel.read(3, 1)
    run.steps(RING // 2, size=1)
    assert run.collector.late_count == 5


def test_too_many_waiting_steps_drop_the_oldest_and_count_them(run, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 20)
    run.steps(50)
    assert run.collector.waiting_count == 20
    assert run.collector.dropped_steps == 30  # the set-up and 49 steps are closed
    assert run.collector.table().step.tolist() == list(range(29, 49))


def test_what_was_dropped_does_not_count_for_the_steps_after_it(run, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    run.steps(2 * RING, size=7)
    assert set(run.collector.table().columns["io/data_read_bytes"]) == {7}


@pytest.mark.parametrize("every", [1, 50, RING - 1])
def test_steps_are_the_same_however_many_are_copied_and_delivered_at_once(every):
    def delivered(every):
        run, random = Run(), np.random.default_rng(1)
        cells = [(op, FileClass.DATA, role) for op in Op for role in Role]
        parts = []
        for number in range(3 * RING):
            run.steps(1, collect=False)
            for at in random.integers(0, 1 + number // 3, 5):  # more kinds as the run goes on
                run.kernel.add(run.ticking.clock.serial, cells[at], int(random.integers(100)))
            run.kernel.read(run.ticking.clock.serial, number, bucket=number % BUCKETS)
            if number % every == 0:
                run.collector.collect(settle=False)
                parts += [run.collector.table()] if number % (2 * every) == 0 else []
        run.ticking.clock.finish()
        run.collector.collect(settle=False)
        return [part for part in (*parts, run.collector.table()) if part is not None]

    few, many = delivered(every), delivered(7)
    for facts in (
        lambda part: part.step,
        lambda part: part.start_ns,
        lambda part: part.cells.rows(),
        lambda part: part.latency,
        *(lambda part, name=name: part.columns[name] for name in few[0].columns),
    ):
        one, other = (np.concatenate([facts(part) for part in parts]) for parts in (few, many))
        np.testing.assert_array_equal(one, other)


def test_phases_add_up_to_the_step(run):
    clock = run.ticking.clock
    clock.measured.update(Phase)
    for phase in Phase:
        clock.begin_fetch()
        run.ticking.after(3).end_fetch()
        clock.begin_batch()
        clock.enter(phase)
        run.ticking.after(10).leave()
        run.ticking.after(5).end_step()
    clock.finish()
    run.collector.collect(settle=False)
    columns = run.collector.table().columns
    phases = [v for name, v in columns.items() if name == "loader/wait_ns" or "phase/" in name]
    assert len(phases) == len(Phase)
    assert sum(phases).tolist() == columns["step/duration_ns"].tolist() == [0] + [18] * len(Phase)
    assert columns["phase/checkpoint_ns"].tolist() == [0] * 7 + [10, 0, 0]


def test_the_cost_of_the_clock_is_that_of_its_switches():
    run = Run(switch_cost_ns=100.0)
    run.ticking.step()
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    # Set-up: into the fetch, which ends it. Step 0: out of the fetch, the end.
    assert run.collector.table().columns["obs/cpu_ns"].tolist() == [100, 200]


def test_totals_of_the_host_become_what_each_step_added():
    totals = iter([[5, 100], [7, 100], [7, 400], [27, 400]])
    ticking = Ticking(sample=lambda: next(totals))
    names = ("io/read_bytes", "io/write_bytes")
    collector = Collector(ticking.clock, None, host_names=names)
    found = []
    for _ in range(3):
        ticking.step()
        collector.collect(settle=False)
        found.append(collector.table())
    ticking.clock.finish()
    collector.collect(settle=False)
    found.append(collector.table())
    assert [[int(part.columns[name][0]) for name in names] for part in found] == [
        [5, 100],
        [2, 0],
        [0, 300],
        [20, 0],
    ]


def test_steps_whose_rows_a_signal_took_away_are_counted_as_dropped(run, monkeypatch):
    """Its handler raises in the training thread; what was copied until then is nobody's."""
    run.steps(5, size=100, collect=False)
    copy = run.collector._copy_rows

    def interrupted(ring, steps):
        copy(ring, steps)
        raise TimeoutError

    monkeypatch.setattr(run.collector, "_copy_rows", interrupted)
    with pytest.raises(TimeoutError):
        run.collector.collect(settle=False)
    monkeypatch.undo()
    run.steps(4, size=100)
    table = run.collector.table()
    assert run.collector.dropped_steps == 5  # the set-up and 4 steps were closed
    assert run.collector.waiting_count == 0
    assert list(table.columns["io/data_read_bytes"]) == [100] * 4


def test_totals_of_dropped_steps_do_not_count_for_the_steps_after_them(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    totals = iter(range(0, 1000, 10))
    ticking = Ticking(sample=lambda: [next(totals)])
    collector = Collector(ticking.clock, None, host_names=("io/read_bytes",))
    for _ in range(20):
        ticking.step()
        collector.collect(settle=False)
    assert collector.table().columns["io/read_bytes"].tolist() == [10, 10, 10]


def test_a_run_that_is_only_timed_has_no_other_column():
    ticking = Ticking()
    collector = Collector(ticking.clock, None)
    ticking.step()
    ticking.clock.finish()
    collector.collect(settle=False)
    table = collector.table()
    assert set(table.columns) == {"step/duration_ns", "phase/other_ns", "obs/cpu_ns"}
    assert table.cells is None
    assert table.latency is None


def test_a_step_is_kept_back_until_all_is_known_of_it():
    known: set[int] = set()
    run = Run(ready=lambda step: step.step in known)
    run.ticking.after(2 * module.HOLD_NS)  # a machine that is up for longer than that
    run.steps(3)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    assert run.collector.table(hold=True) is None
    known.update((SETUP, 0))
    assert run.collector.table(hold=True).step.tolist() == [SETUP, 0]
    assert run.collector.waiting_count == 2
    run.ticking.after(module.HOLD_NS)
    assert run.collector.table(hold=True).step.tolist() == [1, 2]


def test_at_the_end_a_step_is_not_kept_back():
    run = Run(ready=lambda step: False)
    run.steps(3)
    assert len(run.collector.table()) == 3
    assert run.collector.waiting_count == 0


def test_no_more_steps_are_kept_back_than_fit():
    run = Run(ready=lambda step: False)
    run.steps(module.HELD + 10)
    assert len(run.collector.table(hold=True)) == 10
    assert run.collector.waiting_count == module.HELD


def test_it_is_the_end_when_the_clock_is_over_and_no_step_is_left(run, monkeypatch):
    told, close = [], run.collector._ledger.close

    def closing(steps, *, last, **more):
        told.append(last)
        return close(steps, last=last, **more)

    monkeypatch.setattr(run.collector._ledger, "close", closing)
    run.steps(2)
    run.collector.table()
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    run.collector.table()
    assert told == [False, True]


def test_steps_that_nobody_counted_to_their_end_have_no_counts_but_their_times(run):
    run.steps(2, size=100)
    run.kernel.gone_ns = run.ticking.ns + 500_000
    run.steps(2)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    columns = run.collector.table().columns
    read = columns["io/data_read_bytes"].tolist()
    assert read[:2] == [0, 100]
    assert np.isnan(read[3:]).all()
    assert np.isfinite(columns["step/duration_ns"]).all()


class Source:
    """Tells of one lookup a step, of some steps from a certain time on."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.asked: list[int] = []

    def ready(self, step) -> bool:
        return step.serial in self.known

    def rows(self, steps):
        self.asked += [step.serial for step in steps]
        rows = np.zeros(len(steps), LOOKUP_ROW)
        rows["step"] = [step.step for step in steps]
        return rows


def test_lookups_come_with_their_steps_each_asked_for_once():
    source = Source()
    run = Run(lookups=source)
    run.steps(3)
    assert run.collector.table(hold=True) is None, "nothing is known yet"
    source.known = {0, 1}
    table = run.collector.table(hold=True)
    assert table.step.tolist() == table.lookups["step"].tolist() == [SETUP, 0]
    assert run.collector.table(hold=True) is None
    rest = run.collector.table()  # at the end of a run nothing is waited for
    assert rest.step.tolist() == rest.lookups["step"].tolist() == [1]
    assert source.asked == [0, 1, 2]


def test_without_a_source_there_are_no_lookups(run):
    run.steps(2)
    assert run.collector.table().lookups is None
