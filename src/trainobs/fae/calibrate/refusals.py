"""When hot rows are not worth the trouble."""

from __future__ import annotations

from collections.abc import Sequence

from trainobs.core.errors import FAEError
from trainobs.core.text import percent, size
from trainobs.fae.calibrate.choice import Choice
from trainobs.fae.profile.model_tables import ModelTable
from trainobs.fae.profile.predictions import Predictions

LEAST_GAIN_RATIO = 0.1
"""Share that hot rows must serve, at least, of what as many rows picked blindly would not."""


def refuse_no_need(tables: Sequence[ModelTable], budget: int) -> None:
    """Refuse tables that fit the budget as a whole.

    Raises:
        FAEError: they do.
    """
    total = sum(table.total_bytes for table in tables)
    if total <= budget:
        raise FAEError(
            "there is nothing to gain from hot rows",
            f"all {len(tables)} tables take {size(total)} with optimizer state, and hot_bytes "
            f"is {size(budget)}",
            "put the tables on the device as they are (TorchRec's kernel fused)",
        )


def refuse_no_gain(tables: Sequence[ModelTable], choice: Choice, predictions: Predictions) -> None:
    """Refuse hot rows that are hardly looked up more than others.

    Judged by the tables of which a part is hot: what a whole table on the device serves is no
    merit of its rows.

    Raises:
        FAEError: no inputs were held out, or hot rows would surely not serve `LEAST_GAIN_RATIO` of
            what rows picked blindly leave.
    """
    if predictions.input_count == 0:
        raise FAEError(
            "cannot calibrate",
            "too few inputs to hold any out",
            "give a loader with data, as many as one epoch has",
        )
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
