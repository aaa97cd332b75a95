"""Tests that `make test` leaves out, and `make test-all` runs: each with what stays.

A pattern is matched against `folder/module::test[case]`, from its begin.
"""

from __future__ import annotations

import re
from pathlib import Path

SLOW: dict[str, str] = {
    r"access/test_memory::test_counting.*\[(100|half|all)": "many tables",
    r"access/test_skew::test_the_interval_of_an_exponent.*\[(0|1\.3)": "an exponent of 1.05",
    r"analysis/test_cli::test_an_output_that_refuses.*\[.*--json": "text; JSON that nobody reads",
    r"analysis/test_mutated::.*\[.*-2636": "25 of 50 run logs of each kind",
    r"architecture/test_import_side_effects::test_importing_every": (
        "an effect is seen; `make check` imports every module"
    ),
    r"architecture/test_public_face::test_what_needs.*\[absent[01]": "all of them absent",
    r"attach/test_loops::": "a plain loop, from outside, to its end",
    r"attach/test_attach::test_(a_signal|a_killed_process|two_observers)": "the process's end",
    r"attach/test_attach::test_cycles.*\[100": "three cycles",
    r"attach/test_bpftrace::": "the same calls counted by an own probe, in test_own",
    r"attach/test_inside::test_(nothing|a_process_that|another_users)": "faults, signals, refusals",
    r"attach/test_inside::test_steps.*\[(?!plain)": "the plain loop",
    r"attach/test_own::test_nothing.*\[process": "the observer killed",
    r"attach/test_own::test_ranks": "counts of one process, step by step",
    r"attach/test_periodic::test_a_loop.*\[(?!files)": "a loop that reads files",
    r"attach/test_periodic::test_what_has_no.*\[(?!noise)": "noise",
    r"attach/test_periodic::test_(a_change|a_stop|the_end)": "the same without a process",
    r"benchmarks/": "nothing: they test what measures",
    r"embeddings/test_hooks::.*test_whole_graphs.*\[eager": "the same by aot_eager",
    r"embeddings/test_sharded::test_two_ranks": "collections of one process",
    r"examples/test_dlrm_criteo::test_parsing_agrees.*\[[1-4]": "one of five seeds",
    r"examples/test_dlrm_scripts::": "the example's model and its data",
    r"examples/test_imagenet::.*\[train_plain": "the same with Lightning",
    r"examples/test_imagenet_figures::test_a_grid_of_real": "a stand-in trains; written run logs",
    r"examples/test_imagenet_figures::test_(runs_that|a_cell)": (
        "every figure and table of a grid that is whole; what was not measured in it"
    ),
    r"examples/test_imagenet_grid::test_a_grid_that_is.*\[(2|15)": "SIGKILL",
    r"examples/test_imagenet::test_(checkpoints|trains_with|without_no)": "an epoch, observed",
    r"fae/test_data_module::test_lightning_goes_on\[(module-step=(10|20)|module with)": "15 steps",
    r"fae/test_killed::": "going on from a state, in test_pack_resume",
    r"fae/test_pack::test_workers_make.*\[1-spawn": "workers that were forked",
    r"fae/test_pack_ranks::test_two_ranks_train": "100 random agreements",
    r"fae/test_auc::test_the_paper": "the paper's mode keeps hot rows equal; no training to an AUC",
    r"fae/test_pack_resume::test_(a_killed|a_run_goes_on)": "going on with workers, in an epoch",
    r"fae/test_pack_resume::test_a_run_with.*\[(streamed|shuffled-2-1)": "remembered, shuffled",
    r"fae/test_ray_job::test_(the_result|lists_of|data_that)": (
        "columns of every kind, without Ray; the same refusals of a loader, in test_calibrate_data"
    ),
    r"fae/test_sharder_checkpoints::test_(two_ranks|distributed)": "one rank",
    r"fae/test_sharder_behaviour::test_other_rows.*all_ranks\[.*bags": "the same with sequences",
    r"fae/test_sharder_checkpoints::test_training.*\[(stock|FAE to stock-b|FAE to FAE-s)": (
        "FAE to stock, FAE to FAE"
    ),
    r"fae/test_sharder_parity::test_one_rank.*\[(?!375-)": "25 of 400 random models",
    r"fae/test_sharder_parity::test_(two|four)_ranks": "one rank; two in test_sharder_behaviour",
    r"fae/test_sharder_rates::test_(it_reaches|each_group).*\[between-pa": "with an overlay",
    r"fae/test_sharder_torchrec::test_one_rank\[table_(column|row)": "by table, column and row",
    r"fae/test_sharder_torchrec::test_two_ranks\[(table|column|grid)": "two ranks, row by row",
    r"fae/test_sharder_writes::test_a_write.*\[(overlay|paper)-seq": (
        "bags in each mode; sequences, partitioned"
    ),
    r"gpu/test_node::test_(a_follower|the_first_window|a_driver_that_hangs)": (
        "one poller for all processes of a node"
    ),
    r"gpu/test_session::test_(a_forked|each_rank|steps_have|the_probes|without_nvml)": (
        "the GPU's columns in a run; no NVML, in test_doctor"
    ),
    r"host/test_io::test_churn": "workers that come and go",
    r"host/test_loader::.*\[(spawn|forkserver)": "workers that were forked",
    r"host/test_loader::test_more_bytes": "all bytes of three workers",
    r"integrations/test_accelerate::test_(ranks_share|each_rank)": "Accelerate on one rank",
    r"integrations/test_auto::test_processes_that": "TRAINOBS_AUTO in one process",
    r"integrations/test_auto::test_an_exception.*\[.*False": "a callback before ours",
    r"integrations/test_auto::(?!test_a_trainer_is_obs).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch"
    ),
    r"integrations/test_faults::(?!.*(fetched|turned|asked|_publish|begin_fetch|finish))": (
        "each place with fakes, in hooks/test_faults"
    ),
    r"integrations/test_fabric::test_two_ranks": "ranks of Lightning",
    r"integrations/test_huggingface_ddp::": "two ranks, in test_lightning_ddp",
    r"integrations/test_huggingface_start::test_where_the_trainer_does_not.*\[epoch": "never",
    r"integrations/test_huggingface_unchanged::test_(a_comp|or_with|a_training)": "equal bits",
    r"integrations/test_huggingface_unchanged::test_a_fault_of_its.*\[(begin_b|end_f|leave)": (
        "the other of each pair of methods"
    ),
    r"integrations/test_huggingface_unchanged::test_an_exc.*\[options[1248]": (
        "at the start, at a step, in an evaluation"
    ),
    r"integrations/test_huggingface_unchanged::test_weights.*\[options0": "batches accumulated",
    r"integrations/test_lightning_ddp::.*\[pytorch_lightning": "the same by lightning.pytorch",
    r"integrations/test_lightning_(batches|loggers|profilers|steps|un|v).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch"
    ),
    r"integrations/test_lightning_start::(?!test_a_callback_is_taken).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch; pytorch_lightning in three ways to name the callback"
    ),
    r"integrations/test_ranks::": "test_lightning_ddp; written run logs, in analysis/test_ranks",
    r"kernel/test_bcc_probe::": "counters of a text; the same of Probe",
    r"kernel/test_own_probes_in_a_run::": "a few steps of all roles; a forked child lets go",
    r"kernel/test_batches::test_(a_loop|a_worker|an_exc|batches|of_a_|without)": (
        "batches by fork"
    ),
    r"kernel/test_batches::test_every_batch.*\[(spawn|forkserver)": "workers that were forked",
    r"kernel/test_interpreter_lock::.*whatever_the_clock.*\[before0": "a clock a day ahead",
    r"kernel/test_loader_split::test_(computing|reading|large)": "the slow file of a batch",
    r"kernel/test_loader_split::test_sleeping.*\[0": "one worker",
    r"kernel/test_loader_workers::.*\[(spawn|forkserver)": "workers that were forked",
    r"kernel/test_loader_workers::test_(data_is|one_file)": "every byte and call",
    r"kernel/test_network::test_two_ranks": "bytes over TCP",
    r"kernel/test_process_tree::test_workers_in_a_process_name_space": "workers in this name space",
    r"kernel/test_steps::test_a_thousand": "steps, and what counts in which",
    r"kernel/test_unknown::test_no_number_rests.*\[(?!tobs_(sys_exit|cache_add|blk_done))": (
        "three programs"
    ),
    r"packages/test_release::": "objects of both machines, in test_build; the tab",
    r"page/test_file::test_a_page_keeps_within": "a long run, read level by level",
    r"page/test_tab::test_64_kilosteps": "a long run in a file; short ones in the tab",
    r"service/test_misuse::test_(idle|one_who)": "other misuse",
    r"service/test_runs::test_(a_run_goes_on|probes_asked|a_probe_that)": (
        "a run through the service"
    ),
    r"service/test_runs::test_workers_that_outlive": "children that outlive, in test_refusal",
    r"service/test_sessions::test_where_no_slot": "slots that rest",
    r"session/test_clock_steps::": "collectives around a step of the clock, in hooks/test_ranks",
    r"session/test_endings::test_(a_job_whose|a_run_that_is_never)": "ends that are no accident",
    r"session/test_endings::test_a_handler_that_raises.*\[(0\.1|2|20|40)\]": "three moments",
    r"session/test_endings::test_a_job_that_a_signal.*\[(2|9)": "SIGTERM",
    r"session/test_endings::test_a_job_that_comes": "jobs that a signal ends",
    r"session/test_exchange::test_(a_job_that_waits|a_rank_that_is_stopped)": (
        "values that ranks show each other"
    ),
    r"session/test_forks::test_a_child_that_leaves": "children that go on",
    r"session/test_long_run::": "nothing of memory over time",
    r"session/test_startup::test_ctrl_c_at_any": "signals at the end, in test_endings",
    r"test_build::.*\[zig-aarch64": "both compilers for x86-64, clang for both machines",
    r"verdict/test_faults::test_an_interrupted.*\[2": "SIGTERM",
    r"verdict/test_faults::test_kept_runs": "what was kept is judged, without a training before",
    r"verdict/test_faults::test_the_quick_suite": "verdicts on numbers",
}
"""Pattern -> what of the same `make test` still has."""

_PATTERNS = tuple(map(re.compile, SLOW))
_WHOLE = tuple(re.compile(pattern) for pattern in SLOW if pattern.endswith(("/", "::")))


def is_slow(nodeid: str) -> bool:
    """Whether a test, by the name that pytest gives it, is one of them."""
    name = nodeid.removeprefix("tests/").replace(".py::", "::")
    return any(pattern.match(name) for pattern in _PATTERNS)


def all_slow(path: Path) -> bool:
    """Whether all tests of a module are."""
    return any(pattern.match(f"{path.parent.name}/{path.stem}::") for pattern in _WHOLE)
