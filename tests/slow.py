"""Tests that `make test` leaves out, and `make test-all` runs: each with what stays.

A pattern is matched against `folder/module::test[case]`, from its begin.
"""

from __future__ import annotations

import re
from pathlib import Path

SLOW: dict[str, str] = {
    r"access/test_hot::test_what_hot_rows_serve.*\[(500|2000)": "where every row seen is hot",
    r"access/test_hot::test_without_drift_the_interval_holds": "one such pair of epochs",
    r"access/test_memory::": "the plan and the quota, worked out for a budget",
    r"access/test_skew::test_for_exactly_these.*\[50000": "1,000 rows, each exponent",
    r"access/test_skew::test_the_interval_of_an_exponent": (
        "it covers for given rows, and would not without regard for noise"
    ),
    r"analysis/test_brief::test_every_kind.*\[of_64": "12 other kinds of runs",
    r"analysis/test_cli::test_an_output_that_refuses.*\[.*--json": "text; JSON that nobody reads",
    r"analysis/test_intervals::test_the_interval_of_several.*\[0\.[02]\]": "a spread of 0.03",
    r"analysis/test_mutated::.*\[.*-26(?!11)": "10 of 50 run logs of each kind",
    r"architecture/": "nothing: `make check` runs them",
    r"attach/test_loops::": "a plain loop, from outside, to its end",
    r"attach/test_attach::test_(a_signal|a_killed_process|another_program|two_observers)": (
        "the process's end"
    ),
    r"attach/test_attach::test_a_process_in_a_namespace": "a process in the same name space",
    r"attach/test_attach::test_cycles.*\[100": "three cycles",
    r"attach/test_bpftrace::": "the same calls counted by an own probe, in test_own",
    r"attach/test_inside::test_(nothing|a_process_that|another_users)": "faults, signals, refusals",
    r"attach/test_inside::test_steps.*\[(?!plain)": "the plain loop",
    r"attach/test_doubts::test_what_speaks.*\[summed_up": "two threads that step an optimizer",
    r"attach/test_doubts::test_one_look": "the rate of a process, in test_attach",
    r"attach/test_refused::test_a_process_that_ends.*\[(ranks_of|loaded)": "three other moments",
    r"attach/test_own::test_nothing.*\[process": "the observer killed",
    r"attach/test_own::test_ranks": "counts of one process, step by step",
    r"attach/test_periodic::test_a_loop.*\[(?!files)": "a loop that reads files",
    r"attach/test_periodic::test_what_has_no.*\[(?!noise)": "noise",
    r"attach/test_periodic::test_(a_change|a_stop|the_end)": "the same without a process",
    r"benchmarks/": "nothing: they test what measures",
    r"embeddings/test_hooks::.*test_whole_graphs.*\[(eager|.*-in|.*-compiled)": (
        "aot_eager, hooks before it compiles"
    ),
    r"embeddings/test_sharded::test_two_ranks": "collections of one process",
    r"embeddings/test_some_steps::test_intervals_hold": "each order of steps, once",
    r"examples/test_dlrm_criteo::test_parsing_agrees.*\[[1-4]": "one of five seeds",
    r"examples/test_dlrm_scripts::": "the example's model and its data",
    r"examples/test_imagenet::.*\[train_plain": "the same with Lightning",
    r"examples/test_imagenet_figures::test_a_grid_of_real": "a stand-in trains; written run logs",
    r"examples/test_imagenet_figures::test_(every_figure|runs_that|a_cell)": (
        "tables and figures of what was not measured"
    ),
    r"examples/test_imagenet_grid::test_a_grid_that_is": "a grid that grows",
    r"examples/test_imagenet::test_(checkpoints|every_image|trains_with|without_no)": (
        "the data that the example trains on; Lightning's steps and checkpoints, in integrations"
    ),
    r"fae/test_bytes::test_more_ranks": "two ranks",
    r"fae/test_choice::test_the_choice_is.*\[[2-5]\d": "20 of 60 random choices",
    r"fae/test_data_module::test_lightning_goes_on\[(module-step=15-when[14]|loader)": (
        "a module; 15 steps of it, in an epoch"
    ),
    r"fae/test_data_module::test_lightning_goes_on\[(module-step=(10|20)|module with)": "15 steps",
    r"fae/test_data_module::test_ranks_of_lightning": "one rank; two agree, in test_pack_ranks",
    r"fae/test_dimensions::test_what_.*\[.*(paper|partitioned)": "overlay",
    r"fae/test_intervals::test_of_independent_inputs\[(0\.1|0\.97|1)": "shares of 0.004 and 0.5",
    r"fae/test_killed::": "going on from a state, in test_pack_resume",
    r"fae/test_sharder_processed::test_two_ranks.*\[collection": "features; one rank, four ranks",
    r"fae/test_observed::test_what_is_logged.*\[(False-\w+-seq|True-\w+-bags)": (
        "sequences with ranks of their own, bags without, in each mode"
    ),
    r"fae/test_pack::test_every_input.*\[[2-3]\d": "20 of 40 random loaders",
    r"fae/test_pack::test_workers_make.*\[1-spawn": "workers that were forked",
    r"fae/test_pack_ranks::test_two_ranks_train": "50 random agreements",
    r"fae/test_pack_ranks::test_what_is_agreed.*\[[5-9]\d": "50 of 100 random agreements",
    r"fae/test_auc::test_the_paper": "the paper's mode keeps hot rows equal; no training to an AUC",
    r"fae/test_pack_resume::test_(a_killed|a_run_goes_on)": "going on with workers, in an epoch",
    r"fae/test_pack_resume::test_a_run_with.*\[(streamed|shuffled)": "remembered",
    r"fae/test_pool::test_c_takes.*\[\d\d\d": "100 of 300 random batches",
    r"fae/test_ray_job::test_(the_result|lists_of|counters_leave|data_that)": (
        "columns of every kind, without Ray; the same refusals of a loader, in test_calibrate_data"
    ),
    r"fae/test_sharder_adam::.*\[((bags|sequences)-)?(overlay|paper)": "partitioned",
    r"fae/test_sharder_behaviour::test_other_rows.*all_ranks\[(.*bags|overlay)": (
        "sequences, partitioned; bags in each mode, on one rank"
    ),
    r"fae/test_sharder_behaviour::test_other_rows.*epochs\[(overlay-b|paper|partitioned-s)": (
        "bags partitioned, sequences with an overlay"
    ),
    r"fae/test_sharder_behaviour::test_replicas.*\[(sgd-b|adagrad|rowwise_adagrad-s)": (
        "bags by row-wise Adagrad, sequences by SGD"
    ),
    r"fae/test_sharder_behaviour::test_rows_of_two.*\[(alike|.*overlay-s|.*partitioned-b)": (
        "other hot rows, bags with an overlay and sequences partitioned"
    ),
    r"fae/test_sharder_bounds::test_they_do_on_two.*\[(dtype0-row|dtype1-table)": (
        "each mode, each way to shard, with one of two types of ids"
    ),
    r"fae/test_sharder_checkpoints::test_(two_ranks|distributed)": "one rank",
    r"fae/test_sharder_checkpoints::test_a_load_in_place.*\[(overlay|paper)": "partitioned",
    r"fae/test_sharder_checkpoints::test_training.*\[(stock|FAE to FAE|FAE to stock-b)": (
        "FAE to stock, sequences"
    ),
    r"fae/test_sharder_clipping::test_they_are.*\[(overlay-b|paper|partitioned-s)": (
        "bags partitioned, sequences with an overlay"
    ),
    r"fae/test_sharder_data_parallel::test_they_do_on_two.*\[(overlay|paper)": "partitioned",
    r"fae/test_sharder_outputs::.*\[(overlay-b|paper|partitioned-s)": (
        "bags partitioned, sequences with an overlay"
    ),
    r"fae/test_sharder_parity::test_one_rank.*\[(?!390-)": "10 of 400 random models",
    r"fae/test_sharder_parity::test_(two|four)_ranks": "one rank; two in test_sharder_behaviour",
    r"fae/test_sharder_parity::test_where_no_row.*\[(overlay-b|paper|partitioned-s)": (
        "bags partitioned, sequences with an overlay"
    ),
    r"fae/test_sharder_rates::test_(it_reaches|each_group).*\[(before-overlay|.*paper)": (
        "partitioned before, with an overlay between steps"
    ),
    r"fae/test_sharder_refusals::test_replicas_that_each.*\[(overlay|paper)": "partitioned",
    r"fae/test_sharder_sequences::test_one_profile.*\[(overlay-none|paper-some|partitioned-n)": (
        "each mode, with hot rows or without"
    ),
    r"fae/test_sharder_shared_bags::test_ranks_train.*\[(table|column)": "row by row",
    r"fae/test_sharder_shared_bags::test_they_train.*\[(overlay-r|paper-c|partitioned-r)": (
        "each mode, by row or by column"
    ),
    r"fae/test_sharder_torchrec::test_one_rank\[table": "by column and by row",
    r"fae/test_sharder_torchrec::test_two_ranks": "one rank; two in test_sharder_behaviour",
    r"fae/test_sharder_writes::test_a_write.*\[(overlay-s|paper|partitioned-b)": (
        "bags with an overlay, sequences partitioned"
    ),
    r"fae/test_sharder_writes::test_it_does_on_all_ranks": "one rank",
    r"gpu/test_node::test_(a_follower|the_first_window|a_driver_that_hangs)": (
        "one poller for all processes of a node"
    ),
    r"gpu/test_session::test_(a_forked|a_run_that_uses_no|each_rank|steps_have|the_p|without)": (
        "the GPU's columns in a run; no NVML, in test_doctor"
    ),
    r"host/test_io::test_churn": "workers that come and go",
    r"host/test_loader::.*\[(spawn|forkserver)": "workers that were forked",
    r"host/test_loader::test_more_bytes": "all bytes of three workers",
    r"host/test_memory::test_what_a_worker.*\[(spawn|forkserver)": "workers that were forked",
    r"integrations/test_accelerate::test_(ranks_share|each_rank)": "Accelerate on one rank",
    r"integrations/test_auto::test_processes_that": "TRAINOBS_AUTO in one process",
    r"integrations/test_auto::test_an_exception.*\[.*False": "a callback before ours",
    r"integrations/test_auto::(?!test_a_trainer_is_obs).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch"
    ),
    r"integrations/test_faults::(?!.*(fetched|turned|asked|_publish|begin_fetch|finish))": (
        "each place with fakes, in hooks/test_faults"
    ),
    r"integrations/test_fabric::test_two_ranks": "three ranks of a loop, in test_gloo",
    r"integrations/test_huggingface_ddp::": "three ranks of a loop, in test_gloo",
    r"integrations/test_huggingface_start::test_where_the_trainer_does_not.*\[epoch": "never",
    r"integrations/test_huggingface_unchanged::test_(a_comp|or_with|a_training)": "equal bits",
    r"integrations/test_huggingface_unchanged::test_a_fault_of_its.*\[(begin_b|end_f|leave)": (
        "the other of each pair of methods"
    ),
    r"integrations/test_huggingface_unchanged::test_an_exc.*\[options[1248]": (
        "at the start, at a step, in an evaluation"
    ),
    r"integrations/test_huggingface_unchanged::test_weights.*\[options0": "batches accumulated",
    r"integrations/test_io::test_each_epoch_of_lightning.*\[(pytorch|.*True)": (
        "lightning.pytorch without persistent workers"
    ),
    r"integrations/test_lightning_ddp::": "three ranks of a loop, in test_gloo",
    r"integrations/test_lightning_(batches|loggers|profilers|steps|un|v).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch"
    ),
    r"integrations/test_lightning_start::(?!test_a_callback_is_taken).*\[.*pytorch_lightning": (
        "the same by lightning.pytorch; pytorch_lightning in three ways to name the callback"
    ),
    r"integrations/test_ranks::": "test_gloo; written run logs, in analysis/test_ranks",
    r"kernel/test_bcc_probe::": "counters of a text; the same of Probe",
    r"kernel/test_own_probes_in_a_run::": "a few steps of all roles; a forked child lets go",
    r"kernel/test_batches::test_(a_loop|a_worker|an_exc|batches|of_a_|without)": (
        "batches by fork"
    ),
    r"kernel/test_batches::test_every_batch.*\[(spawn|forkserver)": "workers that were forked",
    r"kernel/test_compilers::.*\[zig": "clang",
    r"kernel/test_interpreter_lock::.*whatever_the_clock": "threads that compute in turn",
    r"kernel/test_loader_split::test_(computing|reading|large)": "the slow file of a batch",
    r"kernel/test_loader_split::test_sleeping.*\[0": "one worker",
    r"kernel/test_loader_workers::.*\[(spawn|forkserver)": "workers that were forked",
    r"kernel/test_loader_workers::test_(data_is|one_file)": "every byte and call",
    r"kernel/test_network::test_two_ranks": "bytes over TCP",
    r"kernel/test_process_tree::test_workers_in_a_process_name_space": "workers in this name space",
    r"kernel/test_own_probes::test_without_the_right": "a program that is refused",
    r"kernel/test_steps::test_a_thousand": "steps, and what counts in which",
    r"kernel/test_unknown::test_no_number_rests.*\[(?!tobs_(sys_exit|cache_add|blk_done))": (
        "three programs"
    ),
    r"packages/test_release::": "objects of both machines, in test_build; the tab",
    r"page/test_compare::test_(the_bars|equal)": "the numbers of the same page",
    r"page/test_file::test_(64_ranks|a_page_keeps|of_many)": "means over windows",
    r"page/test_windows::test_a_(long|line)": "means over windows",
    r"page/test_file::test_(a_run_without_an_end|what_keys|a_batch_is_told)": (
        "steps and batches of a whole run, by mouse and keyboard"
    ),
    r"page/test_files_section::test_(a_mapped|peers|the_names|where)": (
        "files of a run; names as text, in test_file"
    ),
    r"page/test_live::test_(?!rows|what)": "rows that come late, reads that fail",
    r"page/test_tab::": "the tab's page, in test_live; its frame, in packages/test_server",
    r"probes/test_kernels::test_each_field.*\[.*aarch64": "the same kernels for x86-64",
    r"service/test_misuse::test_(a_hundred|idle|one_who)": "other misuse",
    r"service/test_runs::test_(a_run_goes_on|probes_asked|a_probe_that)": (
        "a run through the service"
    ),
    r"service/test_runs::test_workers_that_outlive": "children that outlive, in test_refusal",
    r"service/test_sessions::test_where_no_slot": "slots that rest",
    r"integrations/test_signals::test_it_reaches.*\[off --collects": "signals in the loop; probes",
    r"session/test_claims::test_jobs_that_begin": "a directory that is taken",
    r"session/test_clock_steps::": "collectives around a step of the clock, in hooks/test_ranks",
    r"session/test_endings::test_(a_job_whose|a_run_that_is_never)": "ends that are no accident",
    r"session/test_endings::test_a_handler_that_raises.*\[(0\.1|2|20|40)\]": "three moments",
    r"session/test_endings::test_a_job_that_a_signal.*\[(2|9)": "SIGTERM",
    r"session/test_endings::test_a_job_that_comes": "jobs that a signal ends",
    r"session/test_exchange::test_(a_job_that_waits|a_rank_that_is_stopped)": (
        "values that ranks show each other"
    ),
    r"session/test_forks::test_a_child_that_leaves": "children that go on",
    r"session/test_imports::test_(nor_when|a_run_that_the_interpreter)": (
        "before the first flush; ends of an interpreter, in test_plain_notebook"
    ),
    r"session/test_long_run::": "nothing of memory over time",
    r"session/test_startup::test_ctrl_c_at_any": "signals at the end, in test_endings",
    r"session/test_writer_process::test_(a_run_that_is_to|what_the_writer_process_does)": (
        "what it writes, and what it meets"
    ),
    r"session/test_writer_process::test_signals": "a training that is killed",
    r"session/test_writer_process::test_when_the_writer.*\[False": "killed while it is held up",
    r"session/test_writer_process::test_where_none.*\[(?!no such)": "no such file",
    r"test_build::.*\[(zig|clang-aarch64)": "clang for x86-64",
    r"verdict/test_faults::test_an_interrupted.*\[2": "SIGTERM",
    r"verdict/test_faults::test_kept_runs": "what was kept is judged, without a training before",
    r"verdict/test_faults::test_the_quick_suite": "verdicts on numbers",
}
"""Pattern -> what of the same `make test` still has."""

_PATTERNS = tuple(map(re.compile, SLOW))
_WHOLE = tuple(re.compile(pattern) for pattern in SLOW if pattern.endswith(("/", "::")))
_MODULES = tuple(re.compile(re.split(r"(?=::)|\.\*|\\\[", pattern)[0]) for pattern in SLOW)
"""What a module's name begins with, if a test of it can match."""


def is_slow(nodeid: str) -> bool:
    """Whether a test, by the name that pytest gives it, is one of them."""
    name = nodeid.removeprefix("tests/").replace(".py::", "::")
    return any(pattern.match(name) for pattern in _PATTERNS)


def all_slow(path: Path) -> bool:
    """Whether all tests of a module are."""
    return any(pattern.match(f"{path.parent.name}/{path.stem}::") for pattern in _WHOLE)


def none_slow(path: Path) -> bool:
    """Whether no test of a module is; a module of which it is not sure counts as if one were."""
    name = path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
    return not any(pattern.match(name) for pattern in _MODULES)
