"""From counts and held-out inputs to a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.core.text import percent, size
from trainobs.fae.calibration.choice import Choice, RowCounts, choose
from trainobs.fae.calibration.predict import predict
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.kjt.inputs import Inputs, InputUse
from trainobs.fae.profile.arguments import told_bytes
from trainobs.fae.profile.model_tables import ModelTable, left_out, some_of
from trainobs.fae.profile.predictions import Predictions, unread_text
from trainobs.fae.profile.profile import FAEProfile, TableProfile

Made = dict[str, str | int | float]

LEAST_GAIN_RATIO = 0.1
"""Share that hot rows must serve, at least, of what as many rows picked blindly would not."""


def profile_of_sample(
    sample: DataSample, budget: int, confidence: float, made: Made, unread_ratio: float = 0.0
) -> FAEProfile:
    """The profile that follows from what was read; a share of the data may lie behind it.

    Raises:
        FAEError: nothing was held out, or there is nothing to gain.
    """
    made = {**made, "inputs_read": sample.input_count, "inputs_counted": sample.counted_inputs}
    if sample.outside.count:
        made["lookups_left_out"] = sample.outside.count
        sample.outside.tell()
    inputs = sample.held_out(InputUse.REPORTING)
    profile = profile_of(
        sample.tables, sample.counts(), sample.counted_inputs, inputs, budget, confidence, made
    )
    if not unread_ratio or profile.predictions is None or _are_wholly_hot(profile):
        return profile
    logger.warning(
        "hot rows are chosen by the beginning of the data\n  found: %d inputs of loaders that "
        "cannot be asked for single inputs; %s\n  do:    margin=0 reads all of it; a DataLoader "
        "of single samples is read at random",
        sample.input_count,
        unread_text(unread_ratio),
    )
    wholly_hot = [table.name for table in profile.tables if table.is_wholly_hot]
    expected = profile.predictions.with_unread(unread_ratio, wholly_hot)
    return replace(profile, predictions=expected)


def profile_of(
    tables: Sequence[ModelTable],
    counts: Mapping[str, RowCounts],
    counted_inputs: int,
    inputs: Inputs,
    budget: int,
    confidence: float,
    made: Made,
    widened: Callable[[Predictions, Choice], Predictions] = lambda expected, _: expected,
    judged: Sequence[ModelTable] | None = None,
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
        widened: makes of what is expected what is known, where the inputs do not tell all.
        judged: the same tables, with the features of `inputs` where those are others.

    Raises:
        FAEError: nothing was held out, nothing was looked up, or there is nothing to gain.
    """
    if inputs.size and not inputs.lookup_count:
        raise FAEError(
            "cannot choose hot rows",
            f"no lookup in {inputs.size} inputs that were held out",
            "give inputs that look rows of these tables up",
        )
    choice = choose(tables, counts, budget)
    expected = predict(judged or tables, choice, counts, counted_inputs, inputs, confidence)
    predictions = widened(expected, choice)
    _refuse_no_gain(tables, choice, predictions, made)
    _warn_no_need(tables, budget)
    chosen = tuple(
        TableProfile(
            name=table.name,
            row_count=table.row_count,
            dim=table.dim,
            features=table.features,
            hot_ids=choice.hot_ids[table.name],
            row_bytes=table.row_bytes,
            is_sequence=table.is_sequence,
            is_positional=table.is_positional,
        )
        for table in tables
    )
    return FAEProfile(chosen, budget, predictions, made)


def _are_wholly_hot(profile: FAEProfile) -> bool:
    """Whether no data can look up another row."""
    return all(table.is_wholly_hot for table in profile.tables)


def _warn_no_need(tables: Sequence[ModelTable], budget: int) -> None:
    """Warn where the budget holds all tables: it may be that of a larger model."""
    total = sum(table.total_bytes for table in tables)
    if total <= budget and not left_out(tables):
        logger.warning(
            "all rows will be hot\n  found: %s %s with optimizer state, and hot_bytes is %s\n"
            "  do:    nothing, or put these tables on the device (TorchRec's kernel fused)",
            "the table takes" if len(tables) == 1 else f"all {len(tables)} tables take",
            size(total),
            told_bytes(budget),
        )


def warn_left_out(tables: Sequence[ModelTable]) -> None:
    """Tell of tables that can have no hot rows, whatever the budget is."""
    if apart := left_out(tables):
        logger.warning(
            "no row of %s will be hot\n  found: they share features and differ in their number of "
            "rows, and a lookup is hot in all tables of its feature or in none\n"
            "  do:    give them as many rows, or features of their own",
            some_of(apart),
        )


def _refuse_no_gain(
    tables: Sequence[ModelTable], choice: Choice, predictions: Predictions, made: Made
) -> None:
    """Refuse hot rows that are hardly looked up more than others.

    Judged by the tables of which a part is hot: what a whole table on the device serves is no
    merit of its rows, and tables that can have no hot rows are no fault of others.

    Raises:
        FAEError: no inputs were held out, or hot rows would surely not serve `LEAST_GAIN_RATIO` of
            what rows picked blindly leave.
    """
    apart = left_out(tables)
    tables = [table for table in tables if table.name not in apart]
    if not tables:
        raise FAEError(
            "there is nothing to gain from hot rows",
            f"{some_of(apart)}, which share features and differ in their number of rows: none of "
            "these may be hot",
            "give them as many rows, or features of their own, or train on them as they are",
        )
    is_partly_hot = any(len(choice.hot_ids[t.name]) < t.row_count for t in tables)
    if predictions.input_count == 0 and is_partly_hot:
        read, counted_inputs = made.get("inputs_read", 0), made["inputs_counted"]
        found, do = "no input was read", "give a loader of batches, whose KeyedJaggedTensors have"
        do += " lengths or offsets: without them they hold no input"
        if read:
            found = f"{read} inputs were read and {counted_inputs} counted, which leaves none to "
            found += "judge the rows by"
            do = "give hundreds of inputs or more, each of a data set with an id of its own"
        raise FAEError("cannot calibrate", found, do)
    total = served = blindly = 0.0
    for table in tables:
        hot = len(choice.hot_ids[table.name])
        about = predictions.tables[table.name]
        if about.lookups_per_input > 0 and hot < table.row_count:
            total += about.lookups_per_input
            served += about.lookups_per_input * about.hot_lookup_ratio.high
            blindly += about.lookups_per_input * hot / table.row_count
    if total and served - blindly < LEAST_GAIN_RATIO * (total - blindly):
        raise FAEError(
            "there is nothing to gain from hot rows",
            f"of the lookups in tables that do not fit, they would serve at most "
            f"{percent(served / total)}, and rows picked blindly {percent(blindly / total)}",
            "train on these tables as they are, or give more hot_bytes",
        )
