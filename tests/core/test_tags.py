"""What TensorBoard calls metrics, and in which unit it shows them."""

from __future__ import annotations

import pytest

from trainobs.core.catalogue import EMBEDDINGS, METRICS, STEP_METRICS
from trainobs.core.catalogue.ranks import over_ranks

ALL = {metric.name: metric for metric in (*STEP_METRICS, *EMBEDDINGS)}


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("step/duration_ns", ("step/duration_ms", "ms", 1e-6)),
        ("io/data_read_bytes", ("io/data_read_MB", "MB", 1e-6)),
        ("embedding/bytes", ("embedding/MB", "MB", 1e-6)),
        ("cache/hit_ratio", ("cache/hit_percent", "percent", 100)),
        ("fae/pure_step", ("fae/pure_step_percent", "percent", 100)),
        ("embedding/pooling_ratio", ("embedding/pooling_ratio", "lookups per bag", 1)),
        ("gpu/energy_mj", ("gpu/energy_J", "J", 1e-3)),
        ("io/data_read_count", ("io/data_read_count", "calls", 1)),
    ],
)
def test_a_tag_names_the_unit_of_its_points(name, tag):
    assert ALL[name].tag == (f"trainobs/{tag[0]}", *tag[1:])


def test_no_tag_is_in_a_unit_that_nobody_reads_and_no_two_are_the_same():
    tags = [metric.tag for metric in ALL.values()]
    assert len({tag.name for tag in tags}) == len(tags)
    assert not {"ns", "bytes", "ratio", "mJ"} & {tag.unit for tag in tags}
    assert not [tag.name for tag in tags if tag.name.endswith(("ns", "bytes"))]


def test_what_is_over_ranks_is_below_ranks():
    tags = [METRICS[name].tag.name for name in ("step/duration_ns", "ranks/wait_ns")]
    assert list(map(over_ranks, tags)) == [
        "trainobs/ranks/step/duration_ms",
        "trainobs/ranks/wait_ms",
    ]
