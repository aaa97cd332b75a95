"""Batches whose lookups are all hot, and others, in one order on all ranks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.utils.data import DataLoader

from trainobs.core.arguments import check_whole
from trainobs.core.errors import SettingError, a_type
from trainobs.fae.kjt.find import KjtFinder
from trainobs.fae.kjt.host_group import host_group
from trainobs.fae.kjt.split import SlotMap
from trainobs.fae.packing.loader_state import (
    EpochPosition,
    PackedLoaderState,
    PackSettings,
    check_window,
)
from trainobs.fae.packing.scheduler import Schedule, ShuffledOrder
from trainobs.fae.packing.window import PackedWindow, Packer
from trainobs.fae.packing.window_agreement import (
    Offer,
    WindowPlan,
    agree,
    exchange,
    tell_of_same_inputs,
)
from trainobs.fae.packing.window_reader import Progress, WindowSettings
from trainobs.fae.packing.window_source import WindowSource
from trainobs.fae.profile.arguments import check_loader, check_profile
from trainobs.fae.profile.profile import FAEProfile, warn_of_unused

WINDOW_BATCHES = 32
_REMEMBERED_STEPS = 64


def pack(
    loader: Iterable[Any],
    profile: FAEProfile,
    *,
    kjt: str | int | Sequence[str | int] | None = None,
    batch_size: int | None = None,
    window: int = WINDOW_BATCHES,
    seed: int = 0,
    drop_last: bool = False,
    scheduler: Schedule | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> PackedLoader:
    """Sort a loader's inputs into pure and mixed batches, with hot lookups apart.

    The loader is taken window by window. In each window inputs of which every lookup is hot fill
    pure batches, and the others, with what fills none, mixed ones. Every input of a window comes
    exactly once, whole (its lookups, dense features and label), and inputs of one kind keep
    their order. Lookups are parted in the layout of `fae.kjt.split`, in mixed batches too unless a
    table of the profile looks up sequences: these would lose their order.

    In a job of several ranks all of them call `pack`, and take a pure batch in the same steps: at
    the begin of each window they exchange what they have, on the host. If there is no process group
    yet, as before `Trainer.fit`, ranks find each other with the first batch.

    Args:
        loader: yields KeyedJaggedTensors, or tuples, lists, mappings, data classes and other
            objects that hold one beside tensors with a row for each input. The workers of a
            `DataLoader` pack; for anything else the process that iterates does.
        profile: of the hot rows, the sharder's.
        kjt: where a batch holds its lookups, if it holds several KeyedJaggedTensors.
        batch_size: inputs of a packed batch, the loader's by default. Another one needs a
            DataLoader that tells its own.
        window: batches of the loader that are sorted together. The process that iterates holds
            one window, and each worker another. A window has up to one pure batch less than its
            all-hot inputs could fill, so a share of them below 1 / `window` gives none.
        seed: of the order of kinds; of a shuffled loader's order where it has no generator; and
            of random numbers that the data set draws.
        drop_last: leave out inputs that do not fill a batch, and end an epoch with the first rank
            that ends.
        scheduler: of pure and mixed runs; by default they come in random order.
        process_group: ranks that train together, with a backend for tensors of the host. By
            default all ranks, over a new gloo group with the timeout of theirs.

    Raises:
        SettingError: an argument has a bad value.
    """
    _check(loader, profile, batch_size, window, seed, scheduler)
    warn_of_unused(profile, [table.name for table in profile.tables])
    window = _whole_batches(loader, batch_size, window)
    group = process_group if process_group is not None else _all_ranks()
    finder = KjtFinder([name for table in profile.tables for name in table.features], kjt)
    settings = PackSettings(
        fingerprint=profile.fingerprint,
        seed=seed,
        window=window,
        drop_last=drop_last,
        world_size=1 if group is None else dist.get_world_size(group),
    )
    size = batch_size or getattr(loader, "batch_size", None)
    packer = Packer(SlotMap.from_profile(profile), finder, size, drop_last)
    window_settings = WindowSettings(
        packer, window, seed, rank=0 if group is None else dist.get_rank(group)
    )
    schedule = ShuffledOrder(seed) if scheduler is None else scheduler
    return PackedLoader(loader, window_settings, settings, schedule, group)


def _check(
    loader: object, profile: object, batch_size: object, window: int, seed: int, scheduler: object
) -> None:
    check_loader(loader)
    check_profile(profile)
    check_whole(seed, "seed")
    check_whole(window, "window", 1)
    if batch_size is not None:
        check_whole(batch_size, "batch_size", 1)
    if scheduler is not None and not hasattr(scheduler, "is_next_pure"):
        raise SettingError(
            "cannot pack a loader",
            f"{a_type(scheduler)} in the place of a scheduler",
            "give a ShuffleScheduler(), or leave it out",
        )


class _AgreedWindow(NamedTuple):
    """A window, what all ranks do in it, and where in it they begin."""

    window: PackedWindow
    agreement: WindowPlan
    place: EpochPosition


class PackedLoader:
    """What `pack` returns: iterates over an epoch of packed batches.

    Each iteration is the next epoch; `set_epoch` says otherwise. An epoch begins with its first
    batch, so that an iterator that is never asked changes nothing, and ends with its last one.
    One iterator at a time.

    Attributes:
        loader: that is packed.
        scheduler: of pure and mixed batches.
        ahead: batches that whoever iterates has fetched and not trained on, as `state_dict` takes
            it where it is not told. 0; set it to 1 for Lightning where there is no length, which
            `pack_data_module` does.
        group: the ranks, for what they exchange on hosts; None for a single one.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        window_settings: WindowSettings,
        settings: PackSettings,
        scheduler: Schedule,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.loader = loader
        self.scheduler = scheduler
        self._window_settings = window_settings
        self._settings = settings
        self._is_told_of_same = False
        self.ahead = 0
        self._is_exhausted = False
        self.group = group
        self._source = WindowSource(loader, window_settings)
        self._given_size = window_settings.packer.batch_size
        self._is_resumed = False
        self._recent: deque[EpochPosition] = deque([self._begin_of(0)], maxlen=_REMEMBERED_STEPS)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that was interrupted."""
        self._join()
        self._is_exhausted = False
        place = self._start()
        windows = self._source.read(place.progress)
        agreed = self._next(windows, place)
        while agreed is not None:
            following: _AgreedWindow | Exception | None = None
            for batch, within in self._hand_out(agreed):
                if within is None:  # the window's last: is it the epoch's too?
                    within = agreed.place.behind(agreed.window)
                    try:
                        following = self._next(windows, within)
                    except Exception as error:  # raised when this batch is trained on
                        following = error
                    if following is None:
                        within = self._begin_of(place.progress.epoch + 1)
                    elif isinstance(following, _AgreedWindow):
                        within = replace(following.place, digest=following.window.digest)
                self._recent.append(within)
                yield batch
            if isinstance(following, Exception):
                raise following
            agreed = following
        self._is_exhausted = True

    def __len__(self) -> int:
        """Batches of an epoch, where the loader tells how many inputs it has.

        Raises:
            TypeError: it does not.
        """
        loader, size = self.loader, self._window_settings.packer.batch_size
        if not (
            self._source.is_indexed
            and isinstance(loader, DataLoader)
            and loader.batch_size
            and size
        ):
            raise TypeError("the packed loader has no length: its loader tells of no inputs")
        inputs = len(loader.sampler)  # type: ignore[arg-type]
        if loader.drop_last:
            inputs -= inputs % loader.batch_size
        return inputs // size if self._settings.drop_last else math.ceil(inputs / size)

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, or the next one after its end; counted from 0."""
        return self._recent[-1].progress.epoch

    @property
    def sampler(self) -> PackedLoader:
        """Itself, for those who call `loader.sampler.set_epoch`, as Lightning does."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next iteration; one that was interrupted goes on."""
        place = self._recent[-1]
        if epoch != place.progress.epoch or (place.is_within_epoch and not self._is_resumed):
            self._stand_at(self._begin_of(epoch), is_resumed=False)

    def state_dict(self, ahead: int | None = None) -> dict[str, Any]:
        """Where this rank stands, to go on with the next batch in another process.

        Args:
            ahead: batches that were handed out and not trained on yet. In the middle of an epoch
                `TrainPipelineSparseDist` is two ahead, Lightning one if there is no length. By
                default the loader's `ahead`, or none where no batch is left to fetch.

        Returns:
            Numbers, names and small tensors, for `torch.save`. One rank's state serves all of
            them, except that a data set's own state and generator are those of that rank.

        Raises:
            SettingError: `ahead` is more than is remembered.
        """
        if ahead is None:
            ahead = 0 if self._is_exhausted else min(self.ahead, len(self._recent) - 1)
        if not 0 <= ahead < len(self._recent):
            raise SettingError(
                "cannot tell where the loader stood",
                f"ahead={ahead}, with {len(self._recent) - 1} batches remembered",
                f"give the batches that a pipeline fetched ahead, fewer than {_REMEMBERED_STEPS}",
            )
        place = self._recent[-1 - ahead]
        schedule = self.scheduler.state_dict(place.schedule)
        state = PackedLoaderState(self._window_settings.packer.batch_size, place, schedule)
        return state.to_dict(self._settings, self._window_settings.rank, self._workers)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called, with the next iteration.

        Raises:
            FAEError: the state is damaged, or stands in an epoch of a loader with other arguments.
        """
        self._join()
        rank, size = self._window_settings.rank, self._given_size
        loaded = PackedLoaderState.from_dict(state, self._settings, rank, self._workers, size)
        self.scheduler.load_state_dict(loaded.schedule)
        self._window_settings.packer.batch_size = loaded.batch_size
        self._source = WindowSource(
            self.loader, self._window_settings
        )  # its workers must know the state
        self._stand_at(loaded.place, is_resumed=True)

    def _join(self) -> None:
        """Find the other ranks, where `pack` was called before there was a process group."""
        if self.group is None and (group := _all_ranks()) is not None:
            self.group = group
            self._settings = replace(self._settings, world_size=dist.get_world_size(group))
            self._window_settings = replace(self._window_settings, rank=dist.get_rank(group))
            self._source = WindowSource(self.loader, self._window_settings)

    @property
    def _workers(self) -> int | None:
        return None if self._source.is_indexed else self._source.worker_count

    def _begin_of(self, epoch: int) -> EpochPosition:
        generator = self._source.generator
        return EpochPosition(
            Progress(epoch), generator=generator.get_state() if generator else None
        )

    def _stand_at(self, place: EpochPosition, is_resumed: bool) -> None:
        self._is_resumed = is_resumed
        self._recent.clear()
        self._recent.append(place)

    def _start(self) -> EpochPosition:
        """Where the iteration that begins now is to begin."""
        place = self._recent[-1]
        if not self._is_resumed and place.is_within_epoch:
            place = self._begin_of(place.progress.epoch + 1)
        if self._is_resumed and place.generator is not None and self._source.generator:
            self._source.generator.set_state(place.generator)
        self._is_resumed = False
        return place

    def _next(self, windows: Iterator[PackedWindow], place: EpochPosition) -> _AgreedWindow | None:
        """The next window with anything to do, and what all ranks do in it; None after the last."""
        while True:
            window = self._read(windows, place)
            if window is not None and window.input_count:  # workers learn it, and keep it
                self._window_settings.packer.batch_size = window.batch_size
            offers = exchange(self._offer(window, place), self.group)
            if not self._is_told_of_same:
                self._is_told_of_same = tell_of_same_inputs(offers)
            agreement = agree(offers, self._settings.drop_last)
            if window is None or agreement is None:
                return None
            if sum(agreement):
                return _AgreedWindow(window, agreement, place)
            place = place.behind(window)

    def _read(self, windows: Iterator[PackedWindow], place: EpochPosition) -> PackedWindow | None:
        """The next window. Where there is none for an error, the other ranks get one too."""
        try:
            window = next(windows, None)
            if window is not None:
                check_window(place, window.digest)
            return window
        except Exception:
            if self.group is not None:
                exchange(self._offer(None, place, failed=1), self.group)
            raise

    def _offer(self, window: PackedWindow | None, place: EpochPosition, failed: int = 0) -> Offer:
        taken = (place.pure_taken, place.mixed_taken)
        common = repr((self._settings, self.scheduler.mark(), taken))
        digest = blake2b(common.encode(), digest_size=7).digest()
        return Offer(
            batch_count=0 if window is None else len(window.sizes),
            hot_count=0 if window is None else window.hot_count,
            input_count=0 if window is None else window.input_count,
            batch_size=0 if window is None else window.batch_size,
            epoch=place.progress.epoch,
            window=place.progress.windows,
            settings=int.from_bytes(digest, "little"),
            digest=0 if window is None else window.digest,
            ended=int(window is None),
            failed=failed,
        )

    def _hand_out(self, agreed: _AgreedWindow) -> Iterator[tuple[Any, EpochPosition | None]]:
        """The batches of a window from a place in it on; and the place behind each but the last."""
        window, (pure_count, mixed_count), place = agreed
        pure, mixed = place.pure_taken, place.mixed_taken
        others, first = window, pure_count
        if len(window.sizes) < pure_count + mixed_count:
            others, first = window.redivided(pure_count, mixed_count), 0
        self.scheduler.begin(place.progress.epoch, place.progress.windows, pure_count, mixed_count)
        while pure < pure_count or mixed < mixed_count:
            # Where the schedule stands after the last batch, with what was reported since.
            self._recent[-1] = replace(self._recent[-1], schedule=self.scheduler.mark())
            if self.scheduler.is_next_pure(pure_count - pure, mixed_count - mixed):
                batch = window.batch(pure, pure=True)
                pure += 1
            else:
                batch = others.batch(first + mixed, pure=False)
                mixed += 1
            is_last = pure == pure_count and mixed == mixed_count
            within = replace(place, pure_taken=pure, mixed_taken=mixed, digest=window.digest)
            yield batch, None if is_last else within


def _whole_batches(loader: Iterable[Any], batch_size: int | None, window: int) -> int:
    """A window that packed batches fill, of at least so many of the loader's batches."""
    size = getattr(loader, "batch_size", None)
    if batch_size is None or batch_size == size:
        return window
    if not isinstance(size, int):
        raise SettingError(
            "cannot pack into batches of another size",
            f"batch_size={batch_size}, and a loader that does not tell its own",
            "leave batch_size out, or give a DataLoader with a batch_size",
        )
    step = batch_size // math.gcd(batch_size, size)
    return math.ceil(window / step) * step


def _all_ranks() -> dist.ProcessGroup | None:
    """Over a backend of its own for tensors of the host; None without other ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    assert dist.group.WORLD is not None
    return host_group(dist.group.WORLD)
