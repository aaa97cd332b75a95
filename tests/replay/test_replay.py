"""Replays of made-up runs whose time can be worked out by hand, and of changes to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.constructed import MS, STEPS, replay, run, step_ms
from trainobs.core.errors import TrainobsError
from trainobs.replay.changes import ASKED_NS, KNOWN, SYNCHRONIZING, Change, with_changes
from trainobs.replay.handover import Draw, Handover
from trainobs.replay.parsing import examples, parse, parse_together
from trainobs.replay.workers import SLOWER

BUSY = np.zeros(STEPS) + 30 * MS


SLOW_SAMPLER = Draw(cpu=3 * MS, away=2 * MS)
"""A sampler that takes 5 ms a batch."""


@pytest.mark.parametrize(
    ("expected", "changed"),
    [
        (30, {}),  # the worker is slower than the step
        (20, {"workers": 2}),  # 15 ms a batch: the step is
        (50, {"workers": 0}),  # one after another
        (40, {"cpu": np.zeros(STEPS) + 40 * MS}),
        (50, {"cpus": 1.0}),  # one CPU for both
        (50, {"cpus": 1.0, "workers": 4}),
        (25, {"cpus": 2.0, "workers": 4}),  # 50 ms of CPU time on two
        (35, {"side": 3.0}),  # four threads on four CPUs, beside the worker
        (40, {"side": 3.0, "cpus": 2.0, "make_cpu": np.zeros(STEPS)}),  # 80 ms on two
        (25, {"draw": SLOW_SAMPLER, "workers": 2}),  # by the training thread, one after another
        (55, {"draw": SLOW_SAMPLER, "workers": 0}),
        (27, {"hand": Handover(receive=3 * MS, away=4 * MS), "workers": 2}),
        (35, {"hand": Handover(feed=5 * MS), "prefetch": 1}),  # nothing else to make meanwhile
        (30, {"hand": Handover(feed=5 * MS)}),  # on its way while the next one is made
        (30, {"away": np.zeros(STEPS) + 5 * MS}),
        (35, {"away": np.zeros(STEPS) + 15 * MS}),
        (60, {"make_device": BUSY}),
        (30, {"make_device": BUSY, "workers": 2}),
        (30, {"make_device": BUSY, "workers": 8}),  # the device gives no more
        (60, {"make_sleep": BUSY}),
        (30, {"checkpoint": np.zeros(STEPS) + 5 * MS}),  # hidden behind the loader
        (40, {"validation": np.zeros(STEPS) + 20 * MS}),
    ],
)
def test_the_time_of_a_step_is_what_can_be_worked_out(expected, changed):
    assert step_ms(run(**changed)) == pytest.approx(expected, rel=0.03)


def test_what_the_training_thread_computes_in_its_wait_may_stay_without_workers():
    """A hand-over of 40 ms ends with the workers, and a sampler of 40 ms does not."""
    none = np.zeros(STEPS)
    makes = {"make_cpu": none + 2 * MS, "handed_bytes": 0.0}
    now = run(**makes, workers=2, hand=Handover(receive=40 * MS), step=none + 60 * MS)
    least, most = (step_ms(one) for one in with_changes(now, [Change("workers", 0)]))
    assert least == pytest.approx(20 + 2, rel=0.03)
    assert most == pytest.approx((20 + 2 + 40) * SLOWER, rel=0.03)
    assert replay(now).predict([Change("workers", 0)]).gain[0] < 1.0


def test_what_the_tensors_of_a_batch_need_ends_with_the_workers():
    none, hand = (
        np.zeros(STEPS),
        Handover(receive=6 * MS, tensors=5 * MS, away=9 * MS, answered=8 * MS),
    )
    makes = {"make_cpu": none + 2 * MS, "handed_bytes": 0.0}
    now = run(**makes, hand=hand, tensors=20, step=none + 35 * MS)
    least, most = (step_ms(one) for one in with_changes(now, [Change("workers", 0)]))
    assert least == pytest.approx(20 + 0.4, rel=0.01), "nor is memory shared, 80 us a tensor"
    assert most == pytest.approx(SLOWER * (20 + 2 + 1) + 1, rel=0.01)


def test_bytes_that_workers_may_have_copied_are_not_without_them():
    makes = {"make_cpu": np.zeros(STEPS) + 2 * MS, "handed_bytes": 1e6}
    now = run(**makes, hand=Handover(), step=np.zeros(STEPS) + 35 * MS)
    least, most = (step_ms(one) for one in with_changes(now, [Change("workers", 0)]))
    assert least == pytest.approx(20 + 2 - 0.75, rel=0.01), "1.5 ns a byte, half of it here"
    assert most == pytest.approx(SLOWER * 22, rel=0.01)


@pytest.mark.parametrize(
    ("tensors", "most"),
    [
        (2, 30 * SLOWER),  # the worker is slower than the step
        (40, 20 + 2 + 38 * 0.25 + 38 * 0.3 + 30),  # and answers nothing while it makes a batch
    ],
)
def test_workers_that_are_new_hand_over_each_tensor(tensors, most):
    now = run(workers=0, tensors=tensors, handed_bytes=0.0, step=np.zeros(STEPS) + 50 * MS)
    found = [step_ms(one) for one in with_changes(now, [Change("workers", 1)])]
    assert max(found) == pytest.approx(most, rel=0.03)


@pytest.mark.parametrize(("workers", "least", "most"), [(4, 26, 38), (1, 26, 68)])
def test_answers_may_come_earlier_or_later_with_another_number_of_workers(workers, least, most):
    hand = Handover(receive=6 * MS, away=9 * MS)
    now = run(workers=2, hand=hand, step=np.zeros(STEPS) + 35 * MS)
    found = [step_ms(one) for one in with_changes(now, [Change("workers", workers)])]
    assert min(found) <= least + 5
    assert max(found) == pytest.approx(most, rel=0.06)


def test_half_of_what_is_computed_may_leave_answers_as_late_as_they_were():
    hand = Handover(receive=1 * MS, away=9 * MS, held=8 * MS)
    now = run(make_cpu=np.zeros(STEPS) + 10 * MS, hand=hand)
    found = [step_ms(one) for one in with_changes(now, [Change("transform", 0.5)])]
    assert found == pytest.approx([30, 26], rel=0.02)


def test_of_an_unknown_device_both_models_are_right_about_one_worker_and_differ_about_many():
    reads = run(make_device=BUSY, make_cpu=np.zeros(STEPS), cpu=np.zeros(STEPS) + MS)
    assert step_ms(reads, shared=True) == pytest.approx(step_ms(reads, shared=False))
    many = replace(reads, workers=4)
    assert step_ms(many, shared=True) == pytest.approx(30, rel=0.03)
    assert step_ms(many, shared=False) == pytest.approx(30 / 4, rel=0.05)


@pytest.mark.parametrize("name", ["make_device", "make_sleep"])
def test_without_workers_nobody_waits_for_what_they_may_have_shared(name):
    nothing = np.zeros(STEPS)
    three = run(workers=3, make_cpu=nothing, concurrency=(3.0, 3.0), **{name: nothing + 90 * MS})
    (least, _) = with_changes(three, parse(["workers=0"]))
    assert step_ms(three, shared=True) == pytest.approx(30, rel=0.03), "one after another"
    assert step_ms(least, shared=True) == pytest.approx(20 + 30, rel=0.03)
    assert step_ms(least, shared=False) == pytest.approx(20 + 90, rel=0.03)


@pytest.mark.parametrize(
    ("workers", "slept_ms", "least", "most"),
    [(2, 18, 0.97, 2.3), (2, 3, 1.57, 2.3), (1, 18, 1.77, 2.3)],
)
def test_what_workers_sleep_for_may_be_a_lock_which_more_of_them_share_as_well(
    workers, slept_ms, least, most
):
    making = np.zeros(STEPS) + (20 + slept_ms) * MS
    makes = {"make_cpu": np.zeros(STEPS) + 20 * MS, "make_sleep": making - 20 * MS}
    trace = run(**makes, workers=workers, cpu=np.zeros(STEPS) + 1 * MS, step=making / workers)
    low, high = replay(trace).predict([Change("workers", 2 * workers)]).gain
    assert low == pytest.approx(least, abs=0.02)
    assert high == pytest.approx(most, abs=0.2)


def test_workers_that_start_with_each_epoch_cost_their_start_and_an_empty_queue():
    epochs = np.arange(STEPS) % 10 == 0
    epochs[0] = False
    started = run(is_first=epochs, start=50 * MS)
    # In an epoch of ten steps: 50 ms, then the first batch, then nine more of 30 ms, one step.
    assert step_ms(started) == pytest.approx((50 + 10 * 30 + 20) / 10, rel=0.03)
    persistent, *_ = with_changes(started, parse(["persistent"]))
    assert step_ms(persistent) == pytest.approx((10 * 30 + 20) / 10, rel=0.03)


def test_what_is_not_the_workers_of_a_start_stays_and_may_stay_where_nobody_knows():
    is_first = np.arange(STEPS) % 10 == 0
    started = run(is_first=is_first, start=50 * MS, other_start=(40 * MS, 40 * MS))
    after = [trace.start for trace in with_changes(started, parse(["persistent"]))]
    assert set(after) == {40 * MS}
    unknown = replace(started, other_start=(0.0, 50 * MS))
    low, high = (
        replay(replace(unknown, step=0 * BUSY + step_ms(unknown) * MS))
        .predict(parse(["persistent"]))
        .gain
    )
    assert low < 1.0 < 1.1 < high
    live_on = replace(started, has_new_workers=False)
    assert with_changes(live_on, parse(["persistent"])) == (live_on,)


def test_what_slows_steps_down_where_epochs_begin_may_go_with_the_start_of_workers():
    is_first = np.arange(STEPS) % 10 == 0
    is_first[0] = False
    slow = np.where(is_first, 220 * MS, 20 * MS)
    started = run(is_first=is_first, start=50 * MS, cpu=slow, make_cpu=np.zeros(STEPS))
    gains = [step_ms(started) / step_ms(t) for t in with_changes(started, parse(["persistent"]))]
    assert min(gains) == pytest.approx(45 / 40, rel=0.05)
    assert max(gains) == pytest.approx(45 / 20 * SLOWER, rel=0.05), "all steps may be, too"
    alone = replace(started, is_first=np.ones(STEPS, bool))  # nobody knows what is usual
    assert with_changes(alone, parse(["persistent"]))[-1].cpu.max() == 220 * MS / SLOWER


def test_others_that_had_what_was_left_idle_give_it_back():
    # Steps of 6 ms by two threads wait for batches that sleep for 24 ms, beside a busy neighbour.
    none = np.zeros(STEPS)
    parts = {"cpu": none + 6 * MS, "side": 1.4, "make_cpu": none, "make_sleep": none + 24 * MS}
    idle = run(**parts, cpus=0.6, most_cpus=2.0, step=none + 24 * MS)
    assert replay(idle).gain(replace(idle, make_sleep=none)) > 3
    assert replay(idle).gain(replace(idle, most_cpus=np.inf, cpus=np.inf)) < 1.05
    lacked = replace(idle, queued=18 * MS)
    assert replay(lacked).gain(replace(lacked, make_sleep=none)) < 1.1


def test_bursts_are_evened_out_by_a_longer_queue():
    bursts = np.where(np.arange(STEPS) % 10 == 0, 110 * MS, 10 * MS)
    short = run(make_cpu=bursts, prefetch=1)
    long = run(make_cpu=bursts, prefetch=16)
    assert step_ms(short) > 1.15 * step_ms(long)
    assert step_ms(long) == pytest.approx(20, rel=0.05)


def test_with_a_shorter_queue_a_worker_may_wait_to_be_asked():
    # A worker with no other batch to make begins as one is taken: it makes 20 ms beside 20 ms.
    even = run(make_cpu=np.zeros(STEPS) + 20 * MS, prefetch=4)
    times = [step_ms(after) for after in with_changes(even, parse(["prefetch=1"]))]
    assert times == pytest.approx([20, 20 + ASKED_NS / MS], rel=0.01)
    times = [step_ms(after) for after in with_changes(even, parse(["prefetch=8"]))]
    assert times == pytest.approx([20, 20], rel=0.01), "it has others to make meanwhile"


@pytest.mark.parametrize("name", ["checkpoint", "validation"])
def test_workers_that_go_on_beside_it_may_slow_down_what_is_rare(name):
    rare = run(prefetch=1, make_cpu=np.zeros(STEPS) + 20 * MS, **{name: np.full(STEPS, 20 * MS)})
    times = [step_ms(after) for after in with_changes(rare, parse(["prefetch=4"]))]
    assert times == pytest.approx([20 + 20, 20 + SLOWER * 20], rel=0.01)


def test_a_replay_that_does_not_bring_forth_the_run_predicts_nothing():
    wrong = replay(run(step=np.zeros(STEPS) + 40 * MS))
    assert wrong.refused == "the replay of the run as it was is off by 25 % (limit 10 %)"
    assert replay(run(step=np.zeros(STEPS) + 32 * MS)).refused is None


def test_a_run_that_differs_from_itself_may_differ_from_its_replay():
    uneven = np.where(np.arange(STEPS) < STEPS / 2, 28 * MS, 42 * MS)
    assert replay(run(step=uneven)).refused is None


def test_a_prediction_is_an_interval_around_what_came():
    whole = replay(run())
    found = whole.predict(parse(["workers=2"]))
    assert found.low < 20 * MS < found.high
    assert found.gain[0] < 1.5 < found.gain[1]
    nothing = whole.predict(parse(["cached"]))
    assert nothing.gain[0] < 1 < nothing.gain[1] < 1.05
    device = replay(run(make_device=BUSY, step=np.zeros(STEPS) + 60 * MS))
    low, high = device.predict(parse(["workers=2"])).gain
    assert low < 1.95 < high or low > 1.5  # CPU and device overlap whatever the device is
    alone = replay(run(make_device=BUSY, make_cpu=BUSY * 0 + MS, step=BUSY + MS))
    low, high = alone.predict(parse(["workers=2"])).gain
    assert low < 1.1 < 1.4 < high, "nobody knows whether the device can give more"


def test_fewer_threads_of_torch_take_from_less_time_to_all_that_others_worked():
    nothing = np.zeros(STEPS)
    trace = run(
        side=1.0, make_cpu=nothing, awaits=nothing + 2 * MS, away=nothing + 3 * MS, cpus=2.0
    )
    times = [step_ms(after) for after in with_changes(trace, parse(["threads=1"]))]
    # All of the other thread's time was work; none was; and the two only hindered each other.
    assert times == pytest.approx([43, 23, 20 / SYNCHRONIZING + 1], rel=0.03)
    four = replace(trace, threads=4, side=3.0, cpus=4.0)
    times = [step_ms(after) for after in with_changes(four, parse(["threads=2"]))]
    assert times == pytest.approx([43, 23, 20 / SYNCHRONIZING + 1], rel=0.03)
    assert with_changes(trace, parse(["threads=2"])) == (trace,)


def test_more_threads_of_torch_share_the_work_or_only_spin():
    nothing = np.zeros(STEPS)
    trace = run(threads=1, make_cpu=nothing, cpus=2.0, most_cpus=2.0)
    times = [step_ms(after) for after in with_changes(trace, parse(["threads=2"]))]
    assert times == pytest.approx([10, 20 * SYNCHRONIZING], rel=0.03)


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        ("torch's threads is not in the record", {"threads": 0}),
        ("5 threads for 4 CPUs", {"threads": 2}),
        ("8 threads for 4 CPUs", {"threads": 8}),
        ("waited for one for 10 % of the step", {"most_cpus": 6.0, "queued": 3 * MS}),
    ],
)
def test_threads_are_refused_where_nobody_can_tell(found, changed):
    with pytest.raises(TrainobsError, match=found):
        with_changes(run(**changed), parse(["threads=5"]))


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_less_work_never_takes_longer(name):
    rng = np.random.default_rng(3)
    for _ in range(5):
        trace = run(
            make_cpu=rng.exponential(20 * MS, STEPS),
            make_device=rng.exponential(10 * MS, STEPS),
            make_sleep=rng.exponential(5 * MS, STEPS),
            checkpoint=rng.exponential(1 * MS, STEPS),
            validation=rng.exponential(1 * MS, STEPS),
            workers=int(rng.integers(1, 5)),
            cpus=float(rng.uniform(0.5, 4)),
        )
        kind = KNOWN[name]
        less = {"device": 4.0, "cpus": 16.0, "workers": trace.workers + 1.0, "prefetch": 8.0}
        less |= {"threads": 1.0, "others": 0.0}
        best = min(step_ms(after) for after in kind.apply(trace, less.get(name, 0.25)))
        assert best <= 1.03 * step_ms(trace)


def test_a_change_is_read_as_it_is_written():
    words = ["workers=4", "cached", "device=2x", "transform=0.5", "cpus=1.5"]
    assert [str(change) for change in parse(words)] == [
        "workers=4",
        "cached",
        "device=2x",
        "transform=0.5x",
        "cpus=1.5",
    ]


def test_a_change_has_the_name_of_torchs_argument_too():
    given = ["num_workers=4", "prefetch_factor=8", "persistent_workers=True", "persistent_workers"]
    assert parse(given) == parse(["workers=4", "prefetch=8", "persistent", "persistent"])
    assert {"num_workers=4", "persistent_workers=True", "cached"} <= dict(examples()).keys()
    assert all(parse([example]) for example, _ in examples())


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("workers", r"workers needs a value\n.* give one, such as workers=4"),
        ("num_workers=", r"num_workers needs a value\n.* give one, such as num_workers=4"),
        ("cached=1", r"cached takes no value\n.* give cached"),
        ("persistent_workers=False", "persistent_workers can only be True"),
        ("workers=x", "workers cannot be 'x'"),
        ("nope", r"give one of num_workers, prefetch_factor, persistent_workers, cached"),
    ],
)
def test_what_a_change_lacks_is_told(word, told):
    with pytest.raises(TrainobsError, match=told):
        parse([word])


@pytest.mark.parametrize("word", ["prefetch=4", "persistent"])
def test_what_a_loader_without_workers_does_not_take_is_not_predicted(word):
    alone = run(workers=0)
    assert not replay(alone).can_try(word.partition("=")[0])
    for words in ([word], [word, "workers=0"]):
        with pytest.raises(TrainobsError, match="without workers, which takes no p"):
            with_changes(alone if len(words) == 1 else run(workers=2), parse(words))
    assert with_changes(alone, parse([word, "workers=2"]))[0].workers == 2


def test_two_values_of_one_change_are_refused():
    with pytest.raises(TrainobsError, match="workers is given 2 times"):
        parse_together(["num_workers=2", "workers=4"])


@pytest.mark.parametrize(
    "word",
    ["", "worker=2", "workers", "workers=", "workers=-1", "workers=1.5", "workers=nan"]
    + [
        "workers=1e9",
        "device=0",
        "device=-2x",
        "cached=1",
        "transform=x",
        "prefetch=0",
        "threads=0",
        "threads=1.5",
    ]
    + ["cpus=inf", "cpus=0", "others=1", "others=-0.5", "others"],
)
def test_a_change_that_makes_no_sense_is_refused_with_what_does(word):
    with pytest.raises(TrainobsError, match=r"cannot be predicted[\s\S]*found:[\s\S]*do:"):
        parse([word])


def test_where_a_device_may_have_a_limit_no_gain_is_sure_but_by_reading_less():
    none = np.zeros(STEPS)
    now = run(workers=0, make_device=none + 30 * MS, make_cpu=none, step=none + 50 * MS)
    paced = replace(now, is_paced=True)
    for change in (Change("workers", 1.0), Change("compute", 0.5), Change("cached", 0.0)):
        before, after = (replay(trace).predict([change]).gain for trace in (now, paced))
        assert after[1] == before[1]
        assert after[0] == (before[0] if change.name == "cached" else pytest.approx(0.97, abs=0.01))


def test_others_that_give_way_cost_nothing_wherever_they_take_what_is_idle():
    now = run(cpus=1.0, most_cpus=4.0, make_cpu=np.zeros(STEPS), step=np.zeros(STEPS) + 20 * MS)
    more = replay(now).predict(parse(["others=0.9"])).gain
    assert more[0] < 0.45, "they may take them for good"
    assert more[1] >= 1.0
    fewer = replay(now).predict(parse(["others=0.1"])).gain
    assert fewer[0] > 0.95, "nobody loses by that"


@pytest.mark.parametrize("name", ["checkpoint", "validation"])
def test_nothing_is_predicted_of_what_is_not_marked(name):
    with pytest.raises(TrainobsError, match=r"unmarked[\s\S]*do: +mark it"):
        replay(run()).predict(parse([f"{name}=0.5x"]))
    marked = run(**{name: np.zeros(STEPS) + 5 * MS}, step=np.zeros(STEPS) + 30 * MS)
    assert replay(marked).predict(parse([f"{name}=0.5x"])).gain[1] > 1.0


def test_every_change_tells_what_it_is():
    assert all(kind.tells for kind in KNOWN.values())
    assert str(Change("persistent", 0.0)) == "persistent"
