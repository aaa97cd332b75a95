"""What a replay takes from the record of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.replay.constructed import MS, STEPS, step_ms
from trainobs.core.errors import TrainobsError
from trainobs.replay.changes import KNOWN, Change, with_changes
from trainobs.replay.handover import Draw
from trainobs.replay.metric_columns import BATCH
from trainobs.replay.parsing import parse_together
from trainobs.replay.predict import Replay
from trainobs.replay.trace import FEWEST, NEEDED, Given, Trace, trace_of


def record(**changed: float) -> dict[str, np.ndarray]:
    """Columns of steps that wait 10 of 30 ms for a worker that computes."""
    ends = np.arange(1, STEPS + 1) * 30 * MS
    columns = {name: np.zeros(STEPS) for name in (*NEEDED, *BATCH)}
    columns |= {
        "step/duration_ns": np.full(STEPS, 30 * MS),
        "loader/wait_ns": np.full(STEPS, 10 * MS),
        "sched/wait_offcpu_ns": np.full(STEPS, 9 * MS),
        "sched/work_offcpu_ns": np.full(STEPS, 2 * MS),
        "sched/work_runqueue_ns": np.full(STEPS, 2 * MS),
        "batch/compute_ns": np.full(STEPS, 28 * MS),
        "batch/begin_ns": ends - 30 * MS,
        "batch/end_ns": ends - 2 * MS,
        "batch/fetch_begin_ns": ends - 11 * MS,
        "batch/fetch_end_ns": ends,
    }
    return columns | {name: np.full(STEPS, value) for name, value in changed.items()}


def traced(
    columns: dict[str, np.ndarray], first_batch: Mapping[str, float] = {}, **facts: object
) -> Trace | None:
    known = {"workers": 1, "prefetch": 2, "cpus": 2.0, "most_cpus": 2.0} | facts
    return trace_of(columns, np.zeros(len(columns[NEEDED[0]])), Given(**known), first_batch)


def test_a_trace_is_what_the_record_says_without_what_comes_of_it():
    trace = traced(record())
    assert trace is not None
    assert trace.cpu.mean() == pytest.approx(18 * MS)
    assert trace.away.mean() == 0.0, "want of a CPU is brought forth by the replay"
    assert trace.hand.receive == pytest.approx(1 * MS)
    assert trace.hand.feed == pytest.approx(1 * MS)
    assert step_ms(trace) == pytest.approx(28, rel=0.03), "on its way while the next is made"


def accumulated(columns: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The same with so many batches in a step, of each of which is true what is of one."""
    whole = ("begin_ns", "end_ns", "ratio")
    more = {n: c if n.endswith(whole) else c * count for n, c in columns.items()}
    return more | {"batch/count": np.full(STEPS, float(count))}


ITSELF = {"loader/wait_ns": 29 * MS, "step/duration_ns": 49 * MS, "sched/wait_offcpu_ns": 0.0}


@pytest.mark.parametrize(("workers", "made"), [(0, ITSELF), (1, {}), (2, {"batch/end_ns": 1.0})])
def test_a_step_of_several_batches_is_replayed_batch_by_batch(workers, made):
    facts = {"workers": workers, "tensors": 20, "draw": Draw(1 * MS, 0.0), "cpus": 4.0}
    columns = record(**{"batch/compute_ns": 28 * MS * max(1, workers)} | made)
    single, several = (traced(one, **facts) for one in (columns, accumulated(columns, 8)))
    assert several.cpu.mean() == pytest.approx(single.cpu.mean())
    assert several.make_cpu.mean() == pytest.approx(single.make_cpu.mean())
    assert several.hand == single.hand
    assert several.step_ns == pytest.approx(8 * single.step_ns)
    for change in ("workers=0", "workers=1", "workers=3", "transform=0.5", "sampler=0.5"):
        alone, together = (
            Replay(one, one.step_ns).predict(parse_together([change])) for one in (single, several)
        )
        assert together.gain == pytest.approx(alone.gain, rel=0.02), change
        assert together.low == pytest.approx(8 * alone.low, rel=0.02)


def test_what_the_first_step_of_a_pass_takes_longer_is_for_its_first_batches():
    columns = accumulated(record(), 4)
    epochs = np.arange(STEPS) // 10
    columns["batch/compute_ns"][::10] += 60 * MS
    trace = trace_of(columns, epochs, Given(workers=2, prefetch=2, cpus=2.0, most_cpus=2.0))
    begin = int(np.flatnonzero(trace.is_first)[0])
    assert trace.make_cpu[begin : begin + 5] / MS == pytest.approx([58, 58, 28, 28, 28])
    assert len(np.flatnonzero(trace.is_first)) == 11
    assert not trace.tells_opening, "nobody knows which batch it was"


@pytest.mark.parametrize(("asleep", "concurrency"), [(0, 1.0), (8, 1.0), (28, 1.3), (60, 2.0)])
def test_of_several_batches_it_is_known_on_average_how_many_makers_sleep(asleep, concurrency):
    """Shares of the time of two workers: of 60 ms in a batch's 30, both all the time."""
    columns = accumulated(record(**{"batch/device_ns": asleep * MS}), 4)
    found = traced(columns, workers=2).concurrency[0]
    share = min(1.0, asleep / 60)
    assert found == pytest.approx(max(1.0, 2 * share / (1 - (1 - share) ** 2 or 1)), rel=1e-6)
    assert found == pytest.approx(concurrency, rel=0.2)


def ready(**changed: float) -> dict[str, np.ndarray]:
    """Columns of steps of 30 ms that take 10 over a batch which was made long before."""
    ends = np.arange(1, STEPS + 1) * 30 * MS
    made = {
        "sched/wait_offcpu_ns": 7 * MS,
        "sched/wait_runqueue_ns": 1 * MS,
        "sched/worker_cpu_ns": 5 * MS,
        "batch/compute_ns": 1 * MS,
        "batch/end_ns": ends - 29 * MS,
        "batch/fetch_begin_ns": ends - 10 * MS,
        "batch/kept_ns": 0.0,
    }
    return record(**made | changed)


@pytest.mark.parametrize(
    ("tensors", "kept", "answered", "held", "surely"),
    [
        (40, 0, 4, 0, 3),
        (40, 9, 4, 2, 3),
        (2, 0, 0.5, 0, 0.5),  # no more than two tensors ever took
        (0, 0, 0, 0, 0),
    ],
)
def test_tensors_are_asked_for_and_answered_in_turn(tensors, kept, answered, held, surely):
    trace = traced(ready(**{"batch/kept_ns": kept * MS}), tensors=tensors)
    hand = trace.hand
    assert hand.receive == pytest.approx(3 * MS)
    assert hand.away == pytest.approx(6 * MS), "without what it had no CPU for"
    assert hand.answered == pytest.approx(answered * MS)
    assert hand.held == pytest.approx(held * MS)
    assert hand.tensors == pytest.approx(surely * MS)
    assert step_ms(trace) == pytest.approx(18 + 3 + 6, rel=0.01)


def test_what_the_sampler_takes_is_no_hand_over_and_no_making():
    draw = Draw(cpu=2 * MS, away=5 * MS)
    hand = traced(ready(), draw=draw).hand
    assert (hand.receive, hand.away) == pytest.approx((1 * MS, 1 * MS))
    alone = traced(record(**{"batch/sleep_ns": 6 * MS}), workers=0, draw=draw)
    assert alone.make_cpu.mean() == pytest.approx(26 * MS)
    assert alone.make_sleep.mean() == pytest.approx(1 * MS)


def test_a_first_batch_takes_more_than_others_or_that_is_unknown():
    assert traced(ready()).opening == (0, 0)
    usual = traced(ready()).make_cpu[0]
    first = {"batch/compute_ns": usual + 500, "batch/sleep_ns": np.nan}
    assert traced(ready(), first_batch=first).opening == (500, 0)


def test_without_batches_or_with_few_steps_there_is_no_trace():
    assert traced(record() | {"batch/compute_ns": np.full(STEPS, np.nan)}) is None
    few = {name: column[: FEWEST - 1] for name, column in record().items()}
    assert traced(few) is None
    some = np.where(np.arange(STEPS) % 30 == 0, np.nan, 28 * MS)
    assert traced(record() | {"batch/compute_ns": some}) is not None


def test_batches_that_sleep_at_once_are_counted_as_such():
    both = np.full(STEPS, 28 * MS)
    at_once = record() | {"batch/device_ns": both, "batch/compute_ns": both * 0}
    at_once["batch/begin_ns"] = np.repeat(np.arange(STEPS / 2) * 60 * MS, 2)
    at_once["batch/end_ns"] = at_once["batch/begin_ns"] + 28 * MS
    trace = traced(at_once)
    assert trace is not None
    assert trace.concurrency[0] == pytest.approx(2.0)


def test_what_is_read_by_o_direct_is_never_in_memory():
    read = {"io/data_read_bytes": np.full(STEPS, 8e6)}
    some = traced(record() | read | {"io/data_direct_read_bytes": np.full(STEPS, 3e6)})
    most = traced(record() | read | {"io/data_direct_read_bytes": np.full(STEPS, 5e6)})
    assert some is not None
    assert most is not None
    assert with_changes(some, [Change("cached", 0.0)])[0].make_device.sum() == 0
    with pytest.raises(TrainobsError, match=r"O_DIRECT[\s\S]*do:"):
        with_changes(most, [Change("cached", 0.0)])


def test_storage_that_other_threads_may_have_read_is_gone_or_not():
    slept = record() | {"batch/sleep_ns": np.full(STEPS, 20 * MS)}
    reads = {"io/data_read_ns": np.full(STEPS, 10 * MS), "cache/read_stall_ratio": np.ones(STEPS)}
    trace = traced(slept | reads)
    assert trace is not None
    assert trace.others_read == pytest.approx(0.5)
    for change, left in ((Change("cached", 0.0), 10), (Change("device", 2.0), 15)):
        sleeps = [after.make_sleep.mean() / MS for after in with_changes(trace, [change])]
        assert sleeps == pytest.approx([20, left])
    assert KNOWN["latency"].is_possible(trace)
    mostly = traced(slept | reads | {"io/data_read_ns": np.full(STEPS, 15 * MS)})
    assert mostly is not None
    assert not KNOWN["latency"].is_possible(mostly), "that sleep is storage"
    own = traced(slept | reads | {"batch/device_ns": np.full(STEPS, 10 * MS)})
    assert own is not None
    assert own.others_read == 0, "makers of batches slept for these"


def test_a_device_that_may_have_a_limit_is_told_from_one_that_takes_its_time():
    in_turn = np.where(np.arange(STEPS) % 4 == 0, 40 * MS, 0.0)
    grown = np.where(np.arange(STEPS) < STEPS / 2, 0.0, 20 * MS)
    for device, is_paced in ((in_turn, True), (np.full(STEPS, 10 * MS), False), (grown, False)):
        trace = traced(record() | {"batch/device_ns": device})
        assert trace is not None
        assert trace.is_paced is is_paced


@pytest.mark.parametrize(
    ("slope", "noise_ms", "even", "may_be"),
    [
        (-1.0, 0.5, False, True),  # who computes for longer waits the shorter
        (0.0, 0.5, False, False),
        (0.0, 25.0, False, True),  # it cannot be told
        (0.0, 0.0, True, True),
    ],
)
def test_without_workers_a_device_may_have_a_limit_unless_its_waits_tell(
    slope, noise_ms, even, may_be
):
    random = np.random.default_rng(0)
    computed = np.full(STEPS, 40 * MS) + (0 if even else random.normal(0, 2 * MS, STEPS))
    device = np.full(STEPS, 80 * MS) + random.normal(0, noise_ms * MS, STEPS)
    device[1:] += slope * (computed - computed.mean())[:-1]
    columns = record(**{"batch/compute_ns": 0.0, "sched/work_offcpu_ns": 0.0})
    columns |= {"batch/device_ns": device, "loader/wait_ns": device}
    columns["step/duration_ns"] = device + computed
    trace = traced(columns, workers=0)
    assert trace.may_be_paced is may_be
    predicted = Replay(trace, trace.step_ns)
    least, most = predicted.predict(parse_together(["workers=2"])).gain
    assert (least == 1.0) is may_be
    assert most > 1.5
    assert predicted.predict(parse_together(["device=2x"])).gain[0] > 1.3
    assert not traced(columns, workers=1).may_be_paced
