"""What is advised, and what is not."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from tests.replay.constructed import run
from tests.verdict.constructed import MS, TWO_CPUS, columns, split
from trainobs.core.errors import TrainobsError
from trainobs.replay.changes import KNOWN
from trainobs.replay.parsing import parse
from trainobs.replay.predict import Replay
from trainobs.verdict import advice
from trainobs.verdict.facts import facts_from
from trainobs.verdict.parts import Situation, parts_of
from trainobs.verdict.rules import judge, judge_by
from trainobs.verdict.sentence import notes
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind

COPIES = {"batch__compute_ns": 80 * MS, "batch__cpu_wait_ns": 10 * MS, "batch__device_ns": 10 * MS}


@pytest.mark.parametrize(
    ("read_ms", "freed_ms", "device_ms", "told"),
    [
        (55, 0, 10, True),
        (35, 60, 10, True),
        (35, 0, 10, False),
        (55, 0, 50, False),
        (nan, nan, 0, False),
    ],
)
def test_transforms_are_not_to_be_halved_where_the_kernel_computes(
    monkeypatch, read_ms, freed_ms, device_ms, told
):
    alone = replace(TWO_CPUS, workers=0)
    spent = {"io__data_read_ns": read_ms * MS, "memory__reclaim_ns": freed_ms * MS}
    asleep = {"batch__device_ns": device_ms * MS}
    made = columns(**split(compute=90, device=10), **COPIES | spent | asleep)
    summed = SummedSteps()
    summed.add(made)
    verdict = judge(summed, alone)
    assert verdict.cause is Cause.TRANSFORM
    said = [line for line in notes(verdict) if "the kernel's" in line]
    assert len(said) == told

    tried: list[str] = []
    monkeypatch.setattr(advice, "_try", lambda _, change, text: tried.append(text) or ())
    monkeypatch.setattr(advice, "_workers", lambda *_: iter(()))
    now = SimpleNamespace(replay=object(), facts=alone, ns=summed.mean().__getitem__)
    list(advice._replayed(VerdictKind.LOADER, Cause.TRANSFORM, now))
    assert tried == ([] if told else [f"half the {KNOWN['transform'].tells}"])  # as `whatif` says


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"quota": True}, ["a CPU quota of 1"]),
        ({"quota": False}, []),  # nobody knows how large it is
        ({"quota": True, "most_cpus": 2.0}, []),  # nor what the run would do with that at all times
    ],
)
def test_a_larger_quota_is_advised_where_its_size_is_known_of_all_the_run(
    monkeypatch, changed, told
):
    tried: list[str] = []
    monkeypatch.setattr(advice, "_try", lambda _, change, text: tried.append(text) or ())
    facts = replace(TWO_CPUS, usable_cpus=0.5, **changed)
    now = SimpleNamespace(replay=object(), facts=facts)
    list(advice._replayed(VerdictKind.COMPUTE, Cause.QUOTA, now))
    assert tried == told


@pytest.mark.parametrize(
    ("quota", "hidden", "told"),
    [
        (0.5, False, "a CPU quota of 1"),
        (0.5, True, "a CPU quota of 1"),
        (None, False, None),
        (1.8, False, "a CPU quota of 2"),
        (1.8, True, None),  # it is not used up: one of a group above may be
    ],
)
def test_a_larger_quota_is_advised_where_it_is_one_cause_of_two(quota, hidden, told):
    """What a loader computes is the other."""
    known = {"usable_cpus": quota or 0.5, "quota": quota is not None, "quota_hidden": hidden}
    facts = replace(TWO_CPUS, workers=0, **known)
    used = {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "worker", "child")}
    lacks = used | {
        "sched__main_runqueue_ns": 50 * MS,
        "sched__throttled_ns": 50 * MS if quota else 0.0,
    }
    summed = SummedSteps()
    summed.add(columns(**split(compute=40, cpu_wait=40) | lacks))
    replay = SimpleNamespace(
        predict=lambda _: SimpleNamespace(gain=(1.5, 2.0)),
        can_try=lambda name: name == "cpus",
        refused=None,
    )
    verdict = judge_by(replay, summed, facts)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, None)
    assert (verdict.advice.text if verdict.advice else None) == told


@pytest.mark.parametrize(
    ("host", "others", "told"),
    [
        ({}, 0.02, "2 CPUs for this run"),
        ({"cpu_quota": 1.5}, 0.02, "1.5 CPUs for this run"),
        ({"cpu_count": 1}, 0.02, None),
        ({"cpu_quota": 0.9}, 0.02, None),
        ({"local_world_size": 2}, 0.02, None),  # the others may be for the other rank
        ({"most_usable_cpu_count": 4}, 0.02, None),
        ({}, 0.5, None),  # which of them had the one, or have the others, is not known
    ],
)
@pytest.mark.parametrize("is_loader", [False, True])
def test_more_cpus_are_advised_to_who_uses_all_that_affinity_allows(host, others, told, is_loader):
    known = {"usable_cpu_count": 1, "cpu_count": 4, **host}
    facts = facts_from({"settings": {"loader_workers": 0}, "host": known})
    busy = {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "child")}
    busy |= {"sched__main_runqueue_ns": 40 * MS, "sched__main_offcpu_ns": 42 * MS}
    busy |= {"sched__worker_cpu_ns": 45 * MS, "sched__others_cpu_ratio": others}
    busy |= split(compute=50, cpu_wait=50) if is_loader else {}
    summed = SummedSteps()
    summed.add(columns(**busy))
    replay = SimpleNamespace(
        predict=lambda _: SimpleNamespace(gain=(1.5, 2.0)),
        can_try=lambda name: name == "cpus",
        refused=None,
    )
    found = judge_by(replay, summed, facts).advice
    assert (found.text if found else None) == told


@pytest.mark.parametrize(
    ("change", "gain", "worth"),
    [
        ("transform", (1.05, 1.1), True),
        ("gc", (1.06, None), True),
        ("gc", (1.03, None), False),
        ("transform", (1.03, 3.0), False),  # work, for what may be nothing
        ("persistent", (1.03, 3.0), True),
        ("workers", (1.01, 3.0), True),
        ("workers", (1.01, 1.2), False),
        ("persistent", (0.99, 5.0), False),  # it may be slower
    ],
)
def test_a_setting_that_may_help_much_is_worth_advice_where_it_does_no_harm(change, gain, worth):
    assert advice.is_worth([change], gain) is worth


@pytest.mark.parametrize("persistent", [True, False])
def test_to_have_no_workers_is_advised_as_torch_takes_it(monkeypatch, persistent):
    monkeypatch.setattr(advice, "_try", lambda _, change, text: [text])
    facts = replace(TWO_CPUS, usable_cpus=None, has_persistent_workers=persistent)
    replay = SimpleNamespace(can_try=lambda name: True)
    now = SimpleNamespace(facts=facts, ns=lambda name: 0.0)
    text = next(advice._workers(replay, now))
    given = {word.split("=")[0]: 0 for word in text.split() if "=" in word}
    kept = persistent and "without persistent_workers" not in text
    DataLoader(range(2), **given, persistent_workers=kept)


@pytest.mark.parametrize(
    ("throttled", "quota", "most"), [(0, False, 8), (60, False, 2), (60, True, 8), (nan, False, 8)]
)
def test_no_more_workers_are_advised_than_a_hidden_quota_lets_compute(
    monkeypatch, throttled, quota, most
):
    """As of a pod: what it kept from the run tells of it, and CPUs of the machine are no help."""
    tried: list[float] = []
    monkeypatch.setattr(advice, "_try", lambda _, change, text: tried.append(change.value) or ())
    facts = replace(TWO_CPUS, workers=1, usable_cpus=8.0, all_cpus=64.0, quota=quota)
    busy = {"sched__thread_cpu_ns": 10 * MS, "sched__child_cpu_ns": 0.0}
    busy |= {"sched__worker_cpu_ns": 80 * MS, "sched__throttled_ns": throttled * MS}
    summed = SummedSteps()
    summed.add(columns(**busy))  # on 1.9 CPUs
    now = Situation(summed.mean(), parts_of(summed.mean(), facts), facts, None)
    list(advice._workers(object(), now))
    assert max(tried) == most


@pytest.mark.parametrize("known", [False, True])
def test_what_a_replay_does_not_predict_is_not_advised(known):
    """Least of all does it take the report away."""
    unknown = {} if known else dict.fromkeys(KNOWN, "nobody knows")
    trace = run()  # without checkpoints and validations
    replay = Replay(trace, trace.step_ns, unknown)
    facts = replace(TWO_CPUS, quota=True, workers=1)
    summed = SummedSteps()
    summed.add(columns())
    now = Situation(summed.mean(), parts_of(summed.mean(), facts), facts, replay)
    given = [
        name
        for kind in VerdictKind
        for cause in (None, *Cause)
        for one in advice._replayed(kind, cause, now)
        for name in one.change
    ]
    assert bool(given) is known
    assert {"checkpoint", "validation", "sampler"}.isdisjoint(given)


NOT_REPLAYED = {"gc", "memory", "python_threads", "straggler", "tensors_per_batch"}


def test_a_replay_takes_each_change_that_is_advised_but_these():
    replay = SimpleNamespace(
        predict=lambda changes: SimpleNamespace(gain=(1.5, 2.0)), can_try=lambda name: True
    )
    facts = replace(TWO_CPUS, quota=True, tensors=40, others_wait_ns={1: 0.0})
    summed = SummedSteps()
    summed.add(columns(batch__handed_bytes=0.0))
    now = Situation(summed.mean(), parts_of(summed.mean(), facts), facts, replay)
    given = list(advice._fewer_tensors(now))
    for kind in VerdictKind:
        for cause in (None, *Cause):
            given += advice._replayed(kind, cause, now)
            given += advice._by_share(kind, cause, now)
    assert {name for one in given for name in one.change} - KNOWN.keys() == NOT_REPLAYED
    for one in given:
        words = [name if value is True else f"{name}={value}" for name, value in one.change.items()]
        if NOT_REPLAYED.isdisjoint(one.change):
            assert len(parse(words)) == 1
        else:
            with pytest.raises(TrainobsError):
                parse(words)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"has_new_loaders": True}, [advice.MADE_ONCE]),
        ({"has_new_loaders": True, "has_other_passes": True}, []),  # no one loader could be made
        ({"has_new_loaders": None}, []),
    ],
)
def test_workers_cannot_live_on_without_their_loader(monkeypatch, made, told):
    tried: list[str] = []
    monkeypatch.setattr(advice, "_try", lambda _, change, text: tried.append(text) or ())
    monkeypatch.setattr(advice, "_workers", lambda *_: iter(()))
    now = SimpleNamespace(replay=object(), facts=replace(TWO_CPUS, **made))
    list(advice._replayed(VerdictKind.LOADER, None, now))
    assert tried == told


@pytest.mark.parametrize(
    ("host", "end"), [({}, "not hold it"), ({"memory_limit_bytes": 10**9}, "group allows 1 GB")]
)
def test_the_limit_of_memory_that_could_not_hold_what_is_read_is_named(host, end):
    summed = SummedSteps()
    read = {"block__read_bytes": 8e6, "cache__miss_bytes": 8e6, "memory__refault_count": 1000}
    summed.add(columns(**split(device=100), **read))
    told = list(notes(judge(summed, facts_from({"host": host}))))
    assert [line.endswith(end) for line in told] == [True]


@pytest.mark.parametrize("loader", [{"passes": 3}, {"sampler": {"ns": 5}}, {"sampler": None}])
def test_what_a_loader_does_not_tell_is_unknown(loader):
    facts = facts_from({"settings": {"loader_workers": 2}, "loaders": [{"workers": 2} | loader]})
    assert (facts.draw, facts.has_new_loaders) == (None, None)
