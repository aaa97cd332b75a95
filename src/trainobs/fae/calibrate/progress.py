"""A progress bar that leaves no thread behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    what: str, done: int, total: int | None, show: bool
) -> Iterator[Callable[[int], object]]:
    """Shows how many inputs are done, if asked to.

    Args:
        what: is being done.
        done: inputs that were done before.
        total: inputs that there are, None if nobody knows.
        show: whether to show anything.

    Yields:
        A function to call with the number of inputs that were done since.
    """
    if not show:
        yield lambda count: None
        return
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that watches over bars

    with Bar(
        desc=what, initial=done, total=total, unit=" inputs", unit_scale=True, dynamic_ncols=True
    ) as bar:
        yield bar.update
