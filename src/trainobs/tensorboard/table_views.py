"""Views of embedding tables in TensorBoard that are no curves over steps: a text and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainobs.core.log import logger
from trainobs.core.metrics import TAGS
from trainobs.core.now import now_s
from trainobs.tensorboard import protos
from trainobs.tensorboard.skew_picture import HEIGHT, WIDTH, curves_of, picture
from trainobs.tensorboard.table_curves import TableCurves
from trainobs.tensorboard.values import text_value

if TYPE_CHECKING:
    from trainobs.access import AccessCounts

TEXT_TAG = f"{TAGS}embedding/tables"
PICTURE_TAG = f"{TAGS}embedding/skew"

EVERY_S = 60.0
"""Least time between two views."""

SHARE = 0.005
"""Part of the time that they may take: the counts of many rows are looked through more rarely."""


class TableViews:
    """Makes the views now and then.

    Args:
        curves: the tables, and what was summed of them.
        take: how often each row was looked up so far; None where that is unknown.
        now: time in seconds.
    """

    def __init__(
        self,
        curves: TableCurves,
        take: Callable[[], AccessCounts | None],
        now: Callable[[], float] = now_s,
    ) -> None:
        self._curves = curves
        self._take = take
        self._now = now
        self._due = now() + EVERY_S
        self._drawable = True

    def due(self) -> bool:
        """Whether it is time for new ones."""
        return self._now() >= self._due

    def values(self) -> list[protos.Summary.Value]:
        """The views of now; none before the first window."""
        begin = self._now()
        values = list(self._values())
        end = self._now()
        self._due = end + max(EVERY_S, (end - begin) / SHARE)
        return values

    def _values(self) -> Iterator[protos.Summary.Value]:
        text = self._curves.text()
        if text:
            yield text_value(TEXT_TAG, text)
        counts = self._take()
        if counts is None or not self._drawable:
            return
        curves = curves_of(counts, self._curves.shown)
        try:
            drawn = picture(curves) if curves else b""
        except ImportError as error:
            self._drawable = False
            logger.debug("no picture of skew: %s", error)
            return
        if drawn:
            image = protos.Summary.Image(
                width=WIDTH, height=HEIGHT, colorspace=3, encoded_image_string=drawn
            )
            yield protos.Summary.Value(tag=PICTURE_TAG, image=image)
