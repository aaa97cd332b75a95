"""What torch tells of the job: collectives as they were asked for, once each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from tests import needs
from tests.lone_rank import lone_rank
from trainobs.core.collectives import Collective
from trainobs.core.records import UNKNOWN
from trainobs.hooks import distributed
from trainobs.hooks.distributed import GLOO, GROUPS, TorchJob, rank_and_size


@pytest.fixture
def group() -> Iterator[None]:
    """A job of this process alone."""
    with lone_rank():
        yield


def reduce() -> tuple[int, int]:
    """The time before and after a collective is asked for."""
    before = time.monotonic_ns()
    dist.all_reduce(torch.ones(1))
    return before, time.monotonic_ns()


def test_without_a_process_group_there_is_no_job():
    job = TorchJob()
    assert (job.waits_on_host(), job.store("x"), job.arrivals()) == (False, None, [])


def test_jobs_are_told_apart_by_what_started_them(monkeypatch):
    def name(**variables: str) -> str:
        with monkeypatch.context() as only:
            for variable in distributed._LAUNCHED:
                only.delenv(variable, raising=False)
            for variable, value in variables.items():
                only.setenv(variable, value)
            return TorchJob().name()

    told = [{}, {"MASTER_PORT": "1"}, {"MASTER_PORT": "2"}, {"SLURM_JOB_ID": "1"}]
    assert len({name(**variables) for variables in told}) == 4
    assert name(MASTER_PORT="1") == name(MASTER_PORT="1", RANK="3", LOCAL_RANK="1")
    parts = [{"SLURM_JOB_ID": number, "SLURM_HET_SIZE": "2"} for number in "78"]
    assert name(**parts[0]) == name(**parts[1])


@needs.recorder
def test_each_collective_is_told_once_with_the_time_it_was_asked_for(group):
    job = TorchJob()
    job.arrivals(True)
    asked = [reduce() for _ in range(3)]
    found = job.arrivals(True)
    assert [arrival.group for arrival in found] == [0, 0, 0]
    assert [b.seq - a.seq for a, b in zip(found, found[1:], strict=False)] == [1, 1]
    slack = 2_000_000  # the recorder has the wall clock
    for arrival, (before, after) in zip(found, asked, strict=True):
        assert before - slack <= arrival.at_ns <= after + slack
    assert job.arrivals(True) == []
    reduce()
    assert len(job.arrivals(True)) == 1


def test_a_cpu_taken_away_between_two_clocks_moves_no_arrival(monkeypatch):
    """In the first reading before the wall clock, in the last after it; they are 1000 apart."""
    monotonic, wall = iter([0, 80, 100, 102, 110, 130]), iter([1079, 1101, 1111])
    clocks = SimpleNamespace(monotonic_ns=lambda: next(monotonic), time_ns=lambda: next(wall))
    monkeypatch.setattr(distributed, "time", clocks)
    assert distributed._wall_offset_ns() == 1000


HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize(
    ("set_by_ns", "known"), [(0, 2), (500_000, 2), (HOUR_NS, 1), (-HOUR_NS, 1)]
)
def test_what_came_around_a_step_of_the_wall_clock_is_unknown(group, monkeypatch, set_by_ns, known):
    """The recorder stamps with that clock; nobody knows which of its stamps are from before."""
    job, entries, offset_ns = TorchJob(), [], distributed._wall_offset_ns()
    record = {"process_group": ["0", "default_pg"], "is_p2p": False}
    numbers = count()
    monkeypatch.setattr(distributed, "_flight_record", lambda: {"entries": entries})
    found = []
    for seq in (1, 2):
        one = {"record_id": next(numbers), "time_created_ns": time.time_ns()}
        entries.append(record | one | {"collective_seq_id": seq})
        moved_ns = offset_ns + set_by_ns
        monkeypatch.setattr(distributed, "_wall_offset_ns", lambda moved=moved_ns: moved)
        found += job.arrivals(True)
    assert len(found) == known


def test_the_recorder_rests(group, monkeypatch):
    job = TorchJob()
    reads = []
    monkeypatch.setattr(distributed, "_flight_record", lambda: reads.append(1) or {})
    for _ in range(50):
        job.arrivals()
    assert len(reads) == 1
    job.arrivals(True)
    assert len(reads) == 2


@pytest.mark.parametrize("record", [{"entries": [{}]}, {"entries": [{"process_group": 3}]}, None])
def test_a_record_of_another_form_is_none(group, monkeypatch, caplog, record):
    monkeypatch.setattr(distributed, "_flight_record", lambda: record)
    assert TorchJob().arrivals() == []
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_groups_without_all_ranks_and_messages_between_two_are_left_out(group, monkeypatch):
    entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "collective_seq_id": 7}
    stamp = time.time_ns()
    entries = [
        entry,
        entry | {"collective_seq_id": 8, "is_p2p": True},
        entry | {"process_group": ["5", "half"]},
    ]
    entries = [one | {"record_id": i, "time_created_ns": stamp} for i, one in enumerate(entries)]
    monkeypatch.setattr(distributed, "_flight_record", lambda: {"entries": entries})
    (one,) = TorchJob().arrivals()
    assert (one.group, one.seq) == (0, 7)
    assert abs(one.at_ns - time.monotonic_ns()) < 10**9
    assert one[3:] == (Collective.OTHER, UNKNOWN, UNKNOWN)


@needs.recorder
def test_a_collective_has_its_kind_and_the_bytes_of_its_tensors(group, monkeypatch):
    record = distributed._flight_record
    before = len(record()["entries"])  # of groups of other tests, which had the same names
    dist.all_reduce(torch.ones(3, 5))
    dist.all_gather([torch.empty(7, dtype=torch.float64)], torch.ones(7, dtype=torch.float64))
    dist.barrier()
    entries = record()["entries"][before:]
    monkeypatch.setattr(distributed, "_flight_record", lambda: {"entries": entries})
    assert [one[3:] for one in TorchJob().arrivals(True)] == [
        (Collective.ALL_REDUCE, 60, 60),
        (Collective.ALL_GATHER, 56, 56),
        (Collective.BARRIER, 0, 0),
    ]


def test_of_several_that_torch_has_made_one_of_no_bytes_are_known(group, monkeypatch):
    """NCCL's coalesced operations have one number."""
    entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "input_sizes": [[2]]}
    entry |= {"input_dtypes": ["Int"], "time_created_ns": time.time_ns()}
    names = {"nccl:all_reduce": 7, "nccl:broadcast": 7, "nccl:reduce": 8}
    entries = [
        entry | {"record_id": i, "profiling_name": name, "collective_seq_id": names[name]}
        for i, name in enumerate(names)
    ]
    monkeypatch.setattr(distributed, "_flight_record", lambda: {"entries": entries})
    assert [one[3:5] for one in TorchJob().arrivals()] == [
        (Collective.OTHER, UNKNOWN),
        (Collective.REDUCE, 8),
    ]


def test_a_group_keeps_its_number_when_an_older_one_is_gone(group, monkeypatch):
    entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "collective_seq_id": 7}
    first, second = dist.new_group(), dist.new_group()
    name = dist.distributed_c10d._world.pg_names[second]
    dist.destroy_process_group(first)
    entry |= {"process_group": [name, ""], "record_id": 0, "time_created_ns": time.time_ns()}
    monkeypatch.setattr(distributed, "_flight_record", lambda: {"entries": [entry]})
    (one,) = TorchJob().arrivals()
    assert one.group == int(name) == 2


@needs.recorder
def test_groups_that_a_job_makes_anew_are_others(group):
    """Torch gives them, and their collectives, the numbers of those before."""
    job = TorchJob()
    job.arrivals(True)
    found = []
    for _ in range(2):
        for _ in range(3):
            reduce()
        found.append(job.arrivals(True))
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before, after = found
    assert len(before) == len(after) == 3
    assert {one.group + GROUPS for one in before} == {one.group for one in after}


@needs.store_clone
def test_the_jobs_store_is_another_connection_with_names_of_its_own(group):
    store = TorchJob().store("trainobs")
    store.put("0/0", b"x")
    shared = dist.distributed_c10d._get_default_store()
    assert store.get("0/0") == b"x"
    assert not shared.check(["0/0"])
    store.delete("0/0")


def test_a_process_group_that_is_gone_has_no_collectives_and_waited_as_before(group):
    job = TorchJob()
    reduce()
    assert job.waits_on_host()
    dist.destroy_process_group()
    assert (job.waits_on_host(), job.arrivals(True)) == (True, [])


@pytest.mark.parametrize("names", [set(), {"pt_gloo_runloop"}])
def test_where_its_threads_have_no_names_nobody_knows_what_gloo_ends(group, monkeypatch, names):
    monkeypatch.setattr(distributed, "_thread_names", lambda: names)
    assert not TorchJob().waits_on_host()


def test_a_process_group_tells_of_the_job_and_else_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_size() == (3, 4)
    with lone_rank():
        assert rank_and_size() == (0, 1)
    monkeypatch.setenv("RANK", "x")
    monkeypatch.delenv("WORLD_SIZE")
    assert rank_and_size() == (0, 1)


@pytest.mark.parametrize(
    ("config", "on_host"),
    [
        ("cpu:gloo", True),
        ("cpu:gloo,cuda:gloo", True),
        ("cpu:gloo,cuda:nccl", False),
        ("nccl", False),
    ],
)
def test_only_gloo_waits_on_the_host(group, monkeypatch, config, on_host):
    monkeypatch.setattr(dist, "get_backend_config", lambda: config)
    monkeypatch.setattr(distributed, "_thread_names", lambda: {*GLOO, "python"})
    assert TorchJob().waits_on_host() == on_host


def test_with_a_gpu_another_thread_may_wait_for_gloo(group, monkeypatch):
    """That of autograd, by which the training thread is then woken."""
    job = TorchJob()
    deadline = time.monotonic() + 10
    while not job.waits_on_host():  # until gloo's threads have named themselves
        assert time.monotonic() < deadline
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not job.waits_on_host()
