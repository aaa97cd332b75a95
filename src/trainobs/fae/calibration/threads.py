"""Work in several threads: NumPy gives the interpreter up in large operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def each(do: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """As `map`, in as many threads as torch uses; few results wait, however many there are."""
    import torch  # here, as workers of a Ray job only count

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, "trainobs") as pool:
        begun: deque[Future[R]] = deque()
        for item in items:
            begun.append(pool.submit(do, item))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


class BackgroundCall(Generic[P]):
    """Does what it is called with in a thread, while the caller prepares the next call.

    Args:
        do: what to do. What it raises comes with the next call, or with `settle`.
    """

    def __init__(self, do: Callable[P, object]) -> None:
        self._do = do
        self._pool = ThreadPoolExecutor(1, "trainobs")
        self._last: Future[Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin once the last call is done."""
        self.settle()
        self._last = self._pool.submit(self._do, *args, **kwargs)

    def settle(self) -> None:
        """Wait for the last call."""
        last, self._last = self._last, None
        if last is not None:
            wait([last])  # if this is interrupted, `__exit__` still waits
            last.result()

    def __enter__(self) -> BackgroundCall[P]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        if kind is None:
            self.settle()
