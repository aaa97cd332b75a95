"""What can be said of a finished run; reads run logs only.

Each answer is put together by one module, from others that know a part of it:

    summary     a run in numbers. Whether its files are whole: `stored`, `losses`. Steps:
                `metric_statistics`, `step_time`, `own_cost`, `verdicts`, `would_help`,
                `checkpoints`. The rest: `batches`, `io`, `ranks`, `tables`.
    comparison  two sides of runs
    whatif      a run after a change
    one_step    a step, and its batches
    view        pieces for the page, at several resolutions: `levels`
    live, loaded, newest  a run that goes on; one for a notebook; which of several
    no_steps, observed    words on these
"""
