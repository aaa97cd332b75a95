"""Forward pre-hooks that note which rows a module is asked for.

They change nothing: they look at the arguments, and return None. A module's copies, by deepcopy or
pickle, and what TorchScript makes of it go without them.

A hook sits on the module that is asked, and sees the ids that its caller passes. TorchRec's
pipelines distribute the ids of a batch steps before the batch is trained on, but they call the
module when it is, with the same ids: so lookups belong to the step that consumes them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from trainobs.embeddings import opaque
from trainobs.embeddings.buffer import (
    CallIds,
    FeatureCounts,
    LookupBuffer,
    LookupCall,
    LookupCapture,
    capturing,
    copy,
    readable,
)
from trainobs.embeddings.caches import Cache
from trainobs.embeddings.registration import DroppedOnCopy, PreHook
from trainobs.embeddings.sites import Site
from trainobs.embeddings.timing import ForwardTimer
from trainobs.embeddings.transforms import plain_call, under_transform
from trainobs.steps.fast_path import untracked

_NO_KEYS = ("",)

_tracing: Any = torch._C._get_tracing_state
"""None where `torch.jit.trace` is not at work: what it runs is an example, and no lookup."""


class SiteHook(DroppedOnCopy):
    """What is put on a module that looks rows up.

    Args:
        site: the module.
        buffer: where its calls are noted.

    Attributes:
        last: the last call and its ids, for the message when one of them has ended the training.
        caches: kernels whose counters of misses are read in sampled steps.
    """

    _ids_name = "input"  # of the first argument, where it is given by name

    def __init__(self, site: Site, buffer: LookupBuffer) -> None:
        self.site = site
        self.last: tuple[LookupCall, torch.Tensor] | None = None
        self.caches: list[Cache] = []
        self._read_in = -1
        self._buffer = buffer
        self._timer = ForwardTimer(site)
        self._to_time: LookupCapture | None = None
        self._handle = self._register()
        self._on_module = PreHook(site.module, self)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The module is about to look rows up."""
        trains = torch.is_grad_enabled()
        if not (trains or module.training):
            return
        if not torch.compiler.is_dynamo_compiling():
            self._guarded(args, kwargs, trains)
        elif self._handle is not None:
            self._trace(args, kwargs, self._handle)

    @property
    def on(self) -> bool:
        """Whether it is on the module."""
        return self._on_module.on

    def lose(self, found: str, do: str = "call it outside of that to have them counted") -> None:
        """The lookups of the module are unmeasured from the step that runs on."""
        self.site.lose(self._buffer.serial(), found, do)

    def remove(self) -> None:
        """Come off the module."""
        self._on_module.remove()
        self._timer.cancel()
        if self._handle is not None:
            opaque.forget(self._handle)
        self.last = None  # which keeps the site, and so the module

    def note(self, asked: tuple[Any, ...], trains: bool) -> None:
        """Compiled code is about to look rows up; see `trainobs.embeddings.opaque`."""
        self._guarded(asked, {}, trains, compiled=True)

    def _guarded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool, compiled: bool = False
    ) -> None:
        if self._buffer.armed and not self._buffer.aside() and _tracing() is None:
            try:
                self._to_time = None
                if compiled:
                    args = self._arguments(*args)
                if under_transform() is None:
                    self._note(args, kwargs, trains)
                else:
                    self._note_transformed(args, kwargs, trains)
                if self._to_time is not None and not compiled:
                    self._timer.begin(self._to_time)
            except Exception as error:
                self._buffer.fault(error)

    def _arguments(self, *asked: Any) -> tuple[Any, ...]:
        """What the module was called with, from what a compiled graph tells."""
        return asked

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], handle: str) -> None:
        """Put the note into the graph that is being compiled."""
        ids = args[0] if args else kwargs.get("input")
        if isinstance(ids, torch.Tensor) and opaque.fits(handle):
            opaque.note("lookup", handle, ids, _offsets(args, kwargs))

    def _register(self) -> str | None:
        try:
            return opaque.register(self)
        except ImportError:
            self.site.blind = True  # until it is seen that nothing compiled hides it
            return None

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        asked = args[0] if args else kwargs.get(self._ids_name)
        ids = self._ids_of(asked)
        if type(ids) is torch.Tensor and ids.is_cpu:
            if ids.is_floating_point():  # which torch is about to refuse
                return
        elif ids is None or self._unreadable(ids, trains):
            return
        capture = self._buffer.enter()
        since_ns = time.perf_counter_ns() if capture.sampled else 0
        seen = self._call(capture, asked, args, kwargs, trains)
        if seen is None:
            return
        call, ids = seen
        self.site.blind = False
        if capture.sampled and trains:
            call = call._replace(trained=_trained(self.site.module))
        self.last = call, ids
        capture.calls.append(untracked(call))
        if capture.sampled:
            self.site.verify(capture.serial)
            if self.caches and self._read_in != capture.serial:
                self._read_in = capture.serial
                for cache in self.caches:
                    counters = copy(capture, cache.kernel.table_wise_cache_miss)
                    capture.misses.append((cache.tables, counters))
            if self._timer.possible and ids.device.type == "cpu":
                self._to_time = capture
            capture.hook_ns += time.perf_counter_ns() - since_ns

    def _note_transformed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool
    ) -> None:
        """The module is called under transforms of `torch.func`."""
        with plain_call(args, kwargs, self._ids_name) as call:
            if call is not None:
                self._note(*call, trains)
                return
            self._note_unknown(trains)
        self.site.tell(
            "transform",
            "trainobs does not know all lookups of %r; the training goes on\n"
            "  found: calls under transforms of torch.func that do not map over its ids alone\n"
            "  do:    nothing; lookups of those steps are null",
        )

    def _note_unknown(self, trains: bool) -> None:
        """A call of which nothing is known: its tables are unmeasured in this step."""
        capture = self._buffer.enter()
        capture.calls.append(LookupCall(self.site, (), None, None, trains, None))

    def _ids_of(self, asked: Any) -> torch.Tensor | None:
        """The ids in the first argument of a call; None for a call that the module will refuse."""
        return asked if isinstance(asked, torch.Tensor) else None

    def _call(
        self, capture: LookupCapture, asked: Any, args: Any, kwargs: Any, trains: bool
    ) -> tuple[LookupCall, torch.Tensor] | None:
        """What is noted of a call, and its ids; None for one that the module will refuse."""
        raise NotImplementedError

    def _unreadable(self, ids: torch.Tensor, trains: bool) -> bool:
        """Whether the call cannot be noted: then its tables are unmeasured in this step."""
        if ids.is_meta or type(ids).__module__.startswith("torch._subclasses"):
            return True  # a compiler or a summary goes through the model: nothing is looked up
        if capturing(ids):
            self.site.blind = True
            return True
        if not readable(ids):
            self._note_unknown(trains)
            return True
        return False


def _trained(module: nn.Module) -> tuple[int, ...] | None:
    """What a backward pass changes of a module's weight; None where that cannot be seen.

    Optimizers may step within the pass and leave no gradient: they change the weight.
    """
    weight = module._parameters.get("weight")
    if type(weight) is not nn.Parameter or not weight.requires_grad:
        return None
    grad = weight.grad
    if grad is None:
        return (weight._version,)
    if type(grad) is not torch.Tensor:
        return None
    place = grad._nnz() if grad.is_sparse else grad.data_ptr()
    return weight._version, grad._version, place


def _offsets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where bags begin, of modules that take ids and offsets."""
    return args[1] if len(args) > 1 else kwargs.get("offsets")


class EmbeddingHook(SiteHook):
    """For `nn.Embedding`."""

    def _call(
        self, capture: LookupCapture, ids: torch.Tensor, args: Any, kwargs: Any, trains: bool
    ) -> tuple[LookupCall, torch.Tensor]:
        count = ids.numel()
        width = ids.shape[-1] if ids.dim() > 1 else 1
        bags = count // width if width else ids.shape[:-1].numel()  # none of which has a lookup
        sample = CallIds(copy(capture, ids), width, ends=False) if capture.sampled else None
        return LookupCall(self.site, _NO_KEYS, (count,), bags, trains, sample), ids


class BagHook(SiteHook):
    """For `nn.EmbeddingBag`."""

    def __init__(self, site: Site, buffer: LookupBuffer) -> None:
        super().__init__(site, buffer)
        bag = site.module
        assert isinstance(bag, nn.EmbeddingBag)
        self._ends_with_last = bool(bag.include_last_offset)

    def _call(
        self, capture: LookupCapture, ids: torch.Tensor, args: Any, kwargs: Any, trains: bool
    ) -> tuple[LookupCall, torch.Tensor]:
        offsets = _offsets(args, kwargs)
        if offsets is None:
            bags = ids.shape[0]
        else:
            bags = offsets.numel() - self._ends_with_last
            if self._ends_with_last and not ids.is_cuda:  # ids behind the last end are in no bag
                ids = ids[: int(offsets[-1])]
        padding = self.site.passed_over
        lookups = (ids.numel(),) if padding is None else _unlike(capture, ids, padding)
        sample = self._sample(capture, ids, offsets) if capture.sampled else None
        return LookupCall(self.site, _NO_KEYS, lookups, bags, trains, sample), ids

    def _sample(
        self, capture: LookupCapture, ids: torch.Tensor, offsets: torch.Tensor | None
    ) -> CallIds:
        if offsets is None:
            return CallIds(copy(capture, ids), ids.shape[1], ends=False)
        return CallIds(copy(capture, ids), copy(capture, offsets), ends=True)


def _unlike(capture: LookupCapture, ids: torch.Tensor, padding: int) -> tuple[int] | FeatureCounts:
    """How many ids are not the one of the padding."""
    looked_up = torch.count_nonzero(ids != padding)
    return FeatureCounts(copy(capture, looked_up), ends=False) if ids.is_cuda else (int(looked_up),)


class BatchedHook(SiteHook):
    """For FBGEMM's table-batched kernels."""

    _ids_name = "indices"

    def __init__(self, site: Site, buffer: LookupBuffer) -> None:
        super().__init__(site, buffer)
        self._keys = tuple(site.features)

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], handle: str) -> None:
        """Its offsets would be worked on in the graph: what is compiled goes unseen."""

    def _call(
        self, capture: LookupCapture, ids: torch.Tensor, args: Any, kwargs: Any, trains: bool
    ) -> tuple[LookupCall, torch.Tensor] | None:
        offsets = _offsets(args, kwargs)
        if not isinstance(offsets, torch.Tensor):
            return None
        batches = args[4] if len(args) > 4 else kwargs.get("batch_size_per_feature_per_rank")
        bags, ends = self._bags(offsets, batches)
        lookups: list[int] | FeatureCounts
        if ends.is_cuda:
            lookups = FeatureCounts(copy(capture, ends), ends=True)
        else:
            lookups = np.diff(ends.numpy()).tolist()
        sample = (
            CallIds(copy(capture, ids), copy(capture, offsets), ends=True)
            if capture.sampled
            else None
        )
        return LookupCall(self.site, self._keys, lookups, bags, trains, sample), ids

    def _bags(
        self, offsets: torch.Tensor, batches: list[list[int]] | None
    ) -> tuple[int | list[int], torch.Tensor]:
        """Bags of each feature, and where the features begin and end in the ids."""
        if batches is None:
            bags = (offsets.numel() - 1) // len(self._keys)
            if bags == 0:
                return 0, offsets[:1].expand(len(self._keys) + 1)
            return bags, offsets[::bags]
        counts = [sum(ranks) for ranks in batches]
        places = torch.tensor([0, *np.cumsum(counts).tolist()])
        if offsets.is_cuda:
            places = places.pin_memory().to(offsets.device, non_blocking=True)
        return counts, offsets[places]
