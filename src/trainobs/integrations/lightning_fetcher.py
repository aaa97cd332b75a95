"""What Lightning's fetcher has fetched for which step; neither it nor its parts have public names.

Of a loader without a length it fetches one batch ahead, to know which is the last
(`_PrefetchDataFetcher` in `lightning/pytorch/loops/fetchers.py`).
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass, passes


def fetches_for_the_step(trainer: Any) -> bool:
    """Whether Lightning fetches the batch of a step right before it."""
    fetcher = _fetcher(trainer)
    return _is_usual(fetcher) and fetcher.length is not None


def has_torch_loaders_only(trainer: Any) -> bool:
    """Whether all that Lightning fetches from is a loader of torch; False where that is hidden."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    loaders = getattr(combined, "flattened", ())
    return bool(loaders) and all(isinstance(loader, DataLoader) for loader in loaders)


class StreamMatcher:
    """Tells which batch a step gets of a loader without a length.

    Args:
        watch: whose ledger and clock they are.
    """

    def __init__(self, watch: LoaderListener) -> None:
        self._watch = watch
        self._loader: int | None = None

    def got(self, trainer: Any) -> None:
        """The loop has got a batch, of which nothing is said where the fetcher is another one."""
        fetcher = _fetcher(trainer)
        if not _is_usual(fetcher) or fetcher.length is not None:
            return
        at = _only_pass(fetcher)
        if at is None:
            return
        if at.loader != self._loader:
            self._loader = at.loader
            self._watch.ledger.gives_later(at.loader)
        # The ledger knows of no fetch of this key where it is not sure which batch that number is.
        key = at.key_of(at.number - len(fetcher.batches) - 1)
        self._watch.ledger.given([self._watch.clock.serial, at.loader, at.passes, *key])


def _fetcher(trainer: Any) -> Any:
    return getattr(trainer.fit_loop, "_data_fetcher", None)


def _is_usual(fetcher: Any) -> bool:
    """Whether it is no fetcher of which nothing is known."""
    return type(fetcher).__name__ == "_PrefetchDataFetcher"


def _only_pass(fetcher: Any) -> LoaderPass | None:
    """The pass over a loader of torch that is all that is fetched from."""
    combined = getattr(fetcher, "combined_loader", None)
    iterators: Any = getattr(getattr(combined, "_iterator", None), "iterators", ())
    return passes.get(id(iterators[0])) if len(iterators) == 1 else None
