"""From counts and held-out inputs to a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainobs.fae.calibrate.choice import RowCounts, choose
from trainobs.fae.calibrate.predict import predict
from trainobs.fae.calibrate.refusals import refuse_no_gain
from trainobs.fae.calibrate.sample import DataSample
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.model_tables import ModelTable
from trainobs.fae.profile.profile import FAEProfile, TableProfile

Made = dict[str, str | int | float]


def profile_of_sample(sample: DataSample, budget: int, confidence: float, made: Made) -> FAEProfile:
    """The profile that follows from what was read.

    Raises:
        FAEError: nothing was held out, or there is nothing to gain.
    """
    made = {**made, "inputs_read": sample.input_count, "inputs_counted": sample.counted_inputs}
    inputs = sample.reporting.inputs()
    return profile_of(
        sample.tables, sample.counts(), sample.counted_inputs, inputs, budget, confidence, made
    )


def profile_of(
    tables: Sequence[ModelTable],
    counts: Mapping[str, RowCounts],
    counted_inputs: int,
    inputs: Inputs,
    budget: int,
    confidence: float,
    made: Made,
) -> FAEProfile:
    """The profile that follows from counts.

    Args:
        tables: of the model.
        counts: of each table's rows.
        counted_inputs: inputs that they are of.
        inputs: others, of the same data.
        budget: bytes of hot rows.
        confidence: of intervals.
        made: how the counts came about.

    Raises:
        FAEError: nothing was held out, or there is nothing to gain.
    """
    choice = choose(tables, counts, budget)
    predictions = predict(tables, choice, counts, counted_inputs, inputs, confidence)
    refuse_no_gain(tables, choice, predictions)
    chosen = tuple(
        TableProfile(
            name=table.name,
            row_count=table.row_count,
            dim=table.dim,
            features=table.features,
            hot_ids=choice.hot_ids[table.name],
            row_bytes=table.row_bytes,
            is_sequence=table.is_sequence,
        )
        for table in tables
    )
    return FAEProfile(chosen, budget, predictions, made)
