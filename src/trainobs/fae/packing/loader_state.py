"""Where a packed loader stands, and what it takes to go on there in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.fae.packing.scheduler import Mark
from trainobs.fae.packing.window import PackedWindow
from trainobs.fae.packing.window_reader import Progress

_VERSION = 1


@dataclass(frozen=True)
class PackSettings:
    """What must be the same on all ranks, and when a run goes on.

    Attributes:
        fingerprint: of the profile.
        seed: of the order.
        window: batches of the loader in a window.
        drop_last: whether inputs that fill no batch are left out.
        world_size: ranks.
    """

    fingerprint: str
    seed: int
    window: int
    drop_last: bool
    world_size: int


@dataclass(frozen=True)
class EpochPosition:
    """Between two batches of an epoch.

    Attributes:
        progress: windows that were trained on.
        pure_taken: pure batches of the next window that were handed out.
        mixed_taken: mixed ones.
        digest: of that window; None before its first batch.
        schedule: where the schedule stood; None while it stands there still.
        generator: state of the loader's own generator when the epoch began, if it has one.
    """

    progress: Progress
    pure_taken: int = 0
    mixed_taken: int = 0
    digest: int | None = None
    schedule: Mark | None = None
    generator: Tensor | None = None

    @property
    def is_within_epoch(self) -> bool:
        """Whether a batch of the epoch was handed out."""
        return self.digest is not None or self.progress.windows > 0

    def behind(self, window: PackedWindow) -> EpochPosition:
        """Where the next window begins."""
        return EpochPosition(self.progress.behind(window), generator=self.generator)


@dataclass(frozen=True)
class PackedLoaderState:
    """All that `PackedLoader.state_dict` holds.

    Attributes:
        batch_size: inputs of a full batch; None if none was read.
        place: where the rank stands.
        schedule: state of the schedule.
    """

    batch_size: int | None
    place: EpochPosition
    schedule: dict[str, Any]

    def to_dict(self, settings: PackSettings, rank: int, workers: int | None) -> dict[str, Any]:
        """For `torch.save`; what is true of this rank alone stands apart.

        Args:
            settings: of the loader.
            rank: whose state it is.
            workers: of the loader where each window belongs to one; None where any makes any.
        """
        place, progress = self.place, self.place.progress
        return {
            "version": _VERSION,
            **asdict(settings),
            "workers": workers,
            "batch_size": self.batch_size,
            "epoch": progress.epoch,
            "windows": progress.windows,
            "by_worker": dict(progress.by_worker),
            "pure_taken": place.pure_taken,
            "mixed_taken": place.mixed_taken,
            "schedule": self.schedule,
            "of_rank": {
                "rank": rank,
                "digest": place.digest,
                "states": dict(progress.states),
                "generator": None if place.generator is None else place.generator.clone(),
            },
        }

    @classmethod
    def from_dict(
        cls,
        state: Mapping[str, Any],
        settings: PackSettings,
        rank: int,
        workers: int | None,
        batch_size: int | None,
    ) -> PackedLoaderState:
        """The opposite of `to_dict`.

        At the end of an epoch nothing is half done: what comes next may have other settings, such
        as the profile of a refresh, or another number of ranks.

        Args:
            state: what it made.
            settings: of the loader that is to go on.
            rank: of this process. What is true of another rank alone is left out.
            workers: of that loader, or None.
            batch_size: that it was given; None where it is that of the first batch.

        Raises:
            FAEError: the state is damaged, or was taken in an epoch under other settings.
        """
        try:
            if state["version"] != _VERSION:
                _refuse(f"version {state['version']} of it; this trainobs reads {_VERSION}")
            loaded = cls._read(state, rank)
            place = loaded.place
            if place.progress.windows or place.pure_taken or place.mixed_taken:
                _check(state, {**asdict(settings), "workers": workers})
                if batch_size is not None:
                    _check(state, {"batch_size": batch_size})
            return loaded if batch_size is None else replace(loaded, batch_size=batch_size)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _refuse(f"a damaged state: {type(error).__name__}: {error}")
            raise

    @classmethod
    def _read(cls, state: Mapping[str, Any], rank: int) -> PackedLoaderState:
        own = state["of_rank"]
        if own["rank"] != rank:
            if own["generator"] is not None:
                _tell_of_generator(own["rank"])
            own = {"digest": None, "states": {}, "generator": None}
        by_worker = {int(key): _count(value) for key, value in state["by_worker"].items()}
        progress = Progress(
            _count(state["epoch"]), _count(state["windows"]), by_worker, dict(own["states"])
        )
        if sum(by_worker.values()) != progress.windows:
            raise ValueError(f"{progress.windows} windows, by worker {by_worker}")
        place = EpochPosition(
            progress,
            _count(state["pure_taken"]),
            _count(state["mixed_taken"]),
            own["digest"],
            None,
            own["generator"],
        )
        size = state["batch_size"]
        return cls(None if size is None else _count(size), place, dict(state["schedule"]))


def check_window(place: EpochPosition, digest: int) -> None:
    """Whether the window in which a run goes on is the one in which it was interrupted.

    Raises:
        FAEError: the loader reads something else.
    """
    if place.digest is not None and digest != place.digest:
        raise FAEError(
            "cannot go on in the middle of an epoch",
            f"other inputs in window {place.progress.windows} of epoch {place.progress.epoch}",
            "resume with the same data set, sampler, seeds and profile; an order that depends on "
            "anything else cannot be repeated",
        )


def _tell_of_generator(rank: int) -> None:
    logger.warning(
        "trainobs: a packed loader goes on with the state of rank %d, which does not have the "
        "generator of this rank's loader. If that orders its inputs, and was used in an epoch "
        "before, some of this epoch are lost and others come twice: load what each rank saved.",
        rank,
    )


def _check(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if state[name] != value:
            _refuse(f"{name} {state[name]!r} in the state, {value!r} here")


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} where a count should be")
    return value


def _refuse(found: str) -> None:
    raise FAEError(
        "cannot load the state of a packed loader",
        found,
        "give what state_dict() returned, to a loader packed with the same arguments on as many "
        "ranks; with others begin an epoch: by a state of the end of one, or by set_epoch()",
    )
