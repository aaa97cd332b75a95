"""The catalogue as a page of documentation.

python -m trainobs.core.catalogue_page > docs/metrics.md
"""

from __future__ import annotations

from itertools import groupby

from trainobs.core.abi import BUCKETS
from trainobs.core.catalogue import CATALOGUE, EMBEDDINGS, HOT_ROWS
from trainobs.core.histogram import LATENCIES
from trainobs.core.metrics import TAGS, Metric, MetricKind

_INTRODUCTION = """\
# Metrics

<!-- Made by `python -m trainobs.core.catalogue_page > docs/metrics.md`: edit the catalogue. -->

Reference of all metrics. A metric has one name: the column of the run log's `steps` table, and the
key in `trainobs report --json`. TensorBoard shows it in the unit that people read, and its tag says
which.

* A value belongs to a step: to what the machine did while that step ran. Loader workers read ahead,
  so a read counts for the step during which it happened, not for the one that consumes the batch.
* Missing is not zero. A metric without a source on a machine is null in the run log and has no
  point in TensorBoard; a zero was measured.
* A metric that the kernel side counts needs all the programs that its source names (`tobs_...`);
  where one of them does not run, it is unknown. `trainobs doctor` says which run on a machine, and
  [Kernels](kernels.md) which of them a version of Linux has. `tobs_uring` is needed only once the
  training uses io_uring. What libaio (`io_submit`) reads and writes is not counted: once
  the training uses it, all that needs `tobs_uring` is unknown, and whose block requests are. Of
  io_uring opens, fsyncs and splices are not counted, nor requests that tell nothing where they go
  well (`IOSQE_CQE_SKIP_SUCCESS`). System calls of programs of 32 bits are not counted.
* Files with one inode number in several subvolumes of btrfs (a snapshot, or made in the same
  moment), or in layers of overlayfs on several file systems, count as one file, of one kind.
* Over several steps, sums per step are averaged. Ratios and quantiles are formed from the sums and
  histograms of those steps, so a busy step weighs more than an idle one.
* The column *Tag* has what TensorBoard shows by default, without the `trainobs/` in front: times in
  ms, sizes in MB, shares in percent, per step. With `tensorboard="all"` every metric that has a
  value is there, with a tag of the same form: `io/fsync_ns` is `trainobs/io/fsync_ms`.
* Each of the first 200 steps has a point in TensorBoard. Then a point stands for
  `log_every_n_steps` steps, at the last of them; fewer, at the end of a run, have none.
* Over such steps `step/duration_ns` also has the tags `.../p95` and `.../max`; with
  `tensorboard="all"` the other metrics marked `+` have them, too. `loader/wait_ns` also has
  `loader/wait_percent`, its share of the step.
* What happened before the first step is in the run log, in a row whose `step` is null.
"""

_DISTRIBUTIONS = f"""\
## Latency distributions

Histograms of {BUCKETS} buckets, each twice as wide as the one before: bucket b counts latencies of
[2^b, 2^(b+1)) ns. The run log holds all of them by operation, file class and role, in
`latency.parquet`. TensorBoard's pages of histograms and distributions get those below about every
30 seconds, as `trainobs/latency_by_time/data_read_ms` and so on: latency in ms, on which each event
weighs as much as it took, up to where 99 % of the time are. So they show how long the events were
that took the time, not how many there were.

| Name | Of |
|---|---|"""

_BY_TABLE = """\
## Embedding lookups

A value for each step and embedding table: rows of the run log's `embeddings` table, and in
`trainobs report --json` the keys `<name>{table=<table>}`. A step in which a table served nothing
has no row. A tag is that of all tables together; with `tensorboard="all"` some of them have their
own, `<tag>/<table>`. [How to read them](embeddings.md).
"""

_HOT_ROWS = """\
## Hot embedding rows

Of a run whose model was sharded by `trainobs.fae`; other runs have no such columns. [How to read
them](fae-reference.md#metrics).
"""

_HEADINGS = {
    "step": "Step",
    "loader": "Loader",
    "phase": "Phases of the step",
    "io": "Files",
    "cache": "Page cache",
    "block": "Block devices",
    "sched": "Scheduler",
    "net": "Network",
    "gpu": "GPU",
    "pressure": "Pressure",
    "memory": "Memory",
    "python": "Python interpreter",
    "ranks": "Ranks",
    "obs": "Cost of observing",
}

_TABLE = """\
| Metric | Tag | Unit | What it tells | What it cannot see | Source |
|---|---|---|---|---|---|"""


def page() -> str:
    """The page, as Markdown."""
    rooms = groupby(CATALOGUE, key=lambda metric: metric.name.partition("/")[0])
    sections = [_section(_HEADINGS[room], list(metrics)) for room, metrics in rooms]
    return "\n".join([_INTRODUCTION, *sections, _by_table(), _hot_rows(), _distributions()])


def _section(heading: str, metrics: list[Metric]) -> str:
    return "\n".join([f"## {heading}\n", _TABLE, *map(_row, metrics), ""])


def _by_table() -> str:
    return "\n".join([_BY_TABLE, _TABLE, *map(_row, EMBEDDINGS), ""])


def _hot_rows() -> str:
    return "\n".join([_HOT_ROWS, _TABLE, *map(_row, HOT_ROWS), ""])


def _row(metric: Metric) -> str:
    mark = " +" if metric.spread else ""
    unit = f"{metric.unit} per step" if metric.kind is MetricKind.SUM else metric.unit
    needs = ", ".join(f"`{program}`" for program in sorted(metric.programs))
    source = f"{metric.source}: {needs}" if needs else metric.source
    tag = f"`{metric.tag.name.removeprefix(TAGS)}`" if metric.chart else ""
    cells = (f"`{metric.name}`{mark}", tag, unit, metric.tells, metric.blind, source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _distributions() -> str:
    rows = [f"| `{latency.name}` | {latency.title} |" for latency in LATENCIES]
    return "\n".join([_DISTRIBUTIONS, *rows])


if __name__ == "__main__":
    print(page())
