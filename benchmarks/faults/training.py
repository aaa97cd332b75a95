"""What a small training does, in fields that faults, remedies and advice change."""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_BYTES = 28_672
"""Of a file that holds one image, as the loaders read it over HTTP."""


@dataclass(frozen=True)
class Training:
    """A small training. By default it computes 20 ms a step, and its loader costs next to nothing.

    Attributes:
        loop: "plain", "bare", which is the same with nothing marked, or "Lightning".
        steps: of an epoch.
        epochs: rounds over the loader.
        ranks: processes, started by torchrun; two or more train with DDP over gloo.
        side: pixels of an image in height and width.
        width: channels of the network.
        batch: items of a batch.
        threads: that an operation of torch may use; one, so that only a fault competes for CPUs.

        iterable: the data set is iterable, else of the map style.
        shuffle: its items come in another order in each epoch.
        workers: of the loader.
        prefetch: batches that a worker makes ahead.
        persistent: workers live longer than an epoch.
        remade: each epoch has a loader of its own.
        open_cpu_ms: CPU time that the first item of a process takes besides: modules, an index.
        open_sleep_ms: time asleep that it takes besides: a connection.
        item_cpu_ms: CPU time that making an item takes.
        item_sleep_ms: time asleep that making an item takes, as for storage far away.
        slow_every: every so many batches one item is slow; 0: none is.
        slow_cpu_ms: CPU time that a slow item takes besides.
        slow_sleep_ms: time asleep that a slow item takes besides.
        from_share: the share of the epoch from which on items take all of that.
        locked: an item is made while a lock is held that all workers share.
        garbage: objects of which a worker has the collector rid it once a batch.
        stats: names that are asked for, for each item.
        sampler_ms: CPU time that the training thread takes to choose the items of a batch.
        program_ms: CPU time of a program that is run for each batch, as one that decodes.
        ballast_mb: size of one more tensor that is handed over with a batch.

        source: where items come from: "memory"; "files", one for each; "random", places in one
            large file; "mapped", the same by `np.memmap`; or "http", the machine's server.
        cold: the page cache holds nothing of it, not even of what was read before.
        read_kb: read at once.
        reads: for an item; a file of its own is read whole.
        file_mb: size of the one large file.

        copies: times that a batch is enlarged on its way to the device.
        transfer_cpu_ms: CPU time that a transform on the way to the device takes.
        step_cpu_ms: CPU time of Python in forward.
        step_sleep_ms: time asleep in forward, as for an answer from another machine.
        step_program_ms: CPU time of a program that forward runs, as an environment to act in.
        sleep_every: steps between two such sleeps.
        poll_ms: time in forward in which a lock that nobody releases is asked for every 5 ms.
        table_mb: size of a mapped table, of which each step takes 16 rows; 0: none.
        collect_every: steps between two calls of `gc.collect`; 0: none.
        collect_marked: those calls are in forward, else in no phase.
        live_objects: that the collector looks at.
        beside: a thread beside the loop: "", "computes" in Python, or "polls" a queue.
        late_ms: how much later one rank is in each step.
        late_in: where: "backward", asleep; "forward", by computing; or "loader", asleep.

        checkpoint: "" for none, "blocking", "background" for a thread that writes, or "unmarked".
        checkpoint_every: steps.
        checkpoint_mb: size.
        checkpoint_fsync: it is synchronised to the disk.
        validate_every: steps; 0: no validation.
        validation_batches: of a validation.
        validation_cpu_ms: CPU time that an item of validation takes.
        validation_cold: items of validation are cold files of 128 KiB.
        log_cpu_ms: CPU time that a callback takes to print, after each step.
        log_sleep_ms: time that it waits, asleep, for a server to take that.
    """

    loop: str = "plain"
    steps: int = 100
    epochs: int = 1
    ranks: int = 1
    side: int = 32
    width: int = 24
    batch: int = 16
    threads: int = 1

    iterable: bool = False
    shuffle: bool = False
    workers: int = 1
    prefetch: int = 2
    persistent: bool = False
    remade: bool = False
    open_cpu_ms: float = 0.0
    open_sleep_ms: float = 0.0
    item_cpu_ms: float = 0.0
    item_sleep_ms: float = 0.0
    slow_every: int = 0
    slow_cpu_ms: float = 0.0
    slow_sleep_ms: float = 0.0
    from_share: float = 0.0
    locked: bool = False
    garbage: int = 0
    stats: int = 0
    sampler_ms: float = 0.0
    program_ms: float = 0.0
    ballast_mb: int = 0

    source: str = "memory"
    cold: bool = False
    read_kb: int = 128
    reads: int = 1
    file_mb: int = 256

    copies: int = 1
    transfer_cpu_ms: float = 0.0
    step_cpu_ms: float = 0.0
    step_sleep_ms: float = 0.0
    step_program_ms: float = 0.0
    sleep_every: int = 1
    poll_ms: float = 0.0
    table_mb: int = 0
    collect_every: int = 0
    collect_marked: bool = True
    live_objects: int = 0
    beside: str = ""
    late_ms: float = 0.0
    late_in: str = "backward"

    checkpoint: str = ""
    checkpoint_every: int = 10
    checkpoint_mb: int = 0
    checkpoint_fsync: bool = False
    validate_every: int = 0
    validation_batches: int = 0
    validation_cpu_ms: float = 0.0
    validation_cold: bool = False
    log_cpu_ms: float = 0.0
    log_sleep_ms: float = 0.0
