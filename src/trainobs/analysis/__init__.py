"""What can be said of a finished run; reads run logs only.

Each answer is put together by one module, from others that know a part of it:

    summary     a run in numbers. Whether its files are whole: `stored`, `losses`. Steps:
                `metric_statistics`, `step_time`, `own_cost`, `verdicts`, `would_help`,
                `checkpoints`. Loaders and data: `loader_workers`, `data_reads`, `unnamed_reads`.
                Files and peers: `io_numbers`, `io_unknown`, `peer_numbers`, `collectives`.
                Embeddings: `tables`, `table_lookups`, `lookup_time`, `skew`, `hot_rows`. Ranks:
                `ranks`, `stragglers`, `straggler_parts`.
    comparison  two sides of runs. How much they differ: `part_means`, `intervals`, `welch`. Whether
                their steps are the same thing: `step_kinds`, `step_work`. Under what, and with
                which settings: `conditions`, `changes`, `other_loaders`.
    whatif      a run after a change; why there is no replay: `unknown_batches`
    one_step    a step, and its batches: `batches_of_steps`
    view        pieces for the page, at several resolutions: `levels`
    live, loaded, newest  a run that goes on; one for a notebook; which of several
    no_steps, observed    words on these
"""
