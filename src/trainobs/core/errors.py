"""Every error that trainobs raises.

TrainobsError
├── SettingError (ValueError)   a parameter has a bad value
├── ProbeError                  the kernel side cannot do what was asked for by name
├── GpuError                    NVML is missing, or cannot read the GPU in question
├── AttachError                  a process cannot be observed from outside
├── RunLogError                 a run directory cannot be read
├── MissingPackageError (ImportError)  a package is missing that an extra of trainobs brings
├── AccessCountsError           access counts cannot be read or merged
└── FAEError                    hot rows cannot be chosen, read from a file, or used on this model

Each message has three parts: what failed, what was found, what to do.
"""

from __future__ import annotations

import shlex
from enum import Enum
from types import MappingProxyType
from typing import Any

SHOWN = 200
"""Characters of a value that a message shows."""


def a_type(value: object) -> str:
    """The type of a value, for a message: "an int"."""
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """A name of a type behind "a" or "an"."""
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def shown(value: object) -> str:
    """A value for a message: its `repr` on one line, cut where it is long. Raises nothing."""
    length = len(value) if isinstance(value, str | bytes) else 0
    try:
        text = repr(value[:SHOWN] if isinstance(value, str | bytes) else value)
    except Exception as error:
        text = f"{a_type(value)} without a repr: {type(error).__name__}"
    line = " ".join(text.splitlines())
    length = max(length, len(line))
    return line if length <= SHOWN else f"{line[:SHOWN]}... ({length:,} characters)"


REPORT = "please report it"


def what_to_do(error: BaseException | None) -> str:
    """What to do about an exception that nobody expected: `REPORT`, unless the system refused."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "change to a directory that exists: the current one was deleted"
    if isinstance(error, OSError):
        return "see why the system refuses it; observe again after that"
    if isinstance(error, MemoryError):
        return "leave more memory free"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "allow more threads (`ulimit -u`, or pids.max of the control group)"
    return REPORT


class ProbeCause(Enum):
    """Why the kernel side is not available."""

    NO_LIBBPF = "libbpf is missing or too old"
    NO_OBJECT = "the compiled probes are missing"
    NO_BTF = "the kernel has no BTF"
    NO_PERMISSION = "permission denied"
    NO_COMPILER = "no compiler knows BPF"
    NO_TRACEPOINT = "the kernel lacks the tracepoint"
    NO_SERVICE = "no service serves this process"
    REFUSED = "the kernel refused the program"


class TrainobsError(Exception):
    """Base of all errors raised by trainobs; the message has its three parts in lines.

    Attributes:
        failed: what failed.
        found: what was found.
        do: what to do.
    """

    def __init__(self, failed: str, found: str, do: str) -> None:
        super().__init__(f"{failed}\n  found: {found}\n  do:    {do}")
        self.failed = failed
        self.found = found
        self.do = do

    def __reduce__(self) -> tuple[Any, ...]:
        """So that a worker process can hand it over."""
        return type(self), (self.failed, self.found, self.do)


class SettingError(TrainobsError, ValueError):
    """A parameter has a value that trainobs cannot use."""


class ProbeError(TrainobsError):
    """The kernel side cannot do what was asked for.

    Attributes:
        cause: why not, for a program to go by.
        failed, found, do: see `TrainobsError`.
    """

    def __init__(self, cause: ProbeCause, failed: str, found: str, do: str) -> None:
        super().__init__(failed, found, do)
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        """As of any, with the cause."""
        return type(self), (self.cause, self.failed, self.found, self.do)


class GpuError(TrainobsError):
    """NVML is missing, or cannot read the GPU in question."""


class AttachError(TrainobsError):
    """A process cannot be observed from outside."""


class RunLogError(TrainobsError):
    """A run directory is missing, unreadable, or of another schema."""


class MissingPackageError(TrainobsError, ImportError):
    """A package is missing that an extra of trainobs brings."""

    PACKAGES = MappingProxyType(
        {
            "torch": ("torch>=2.5",),
            "lightning": ("lightning>=2.5",),
            "huggingface": ("accelerate>=1.3", "transformers>=5.3"),
            "fae": ("torchrec>=1.6,<1.10", "tqdm"),
        }
    )
    """Extra -> what it brings, torch beside others left out: these bring it themselves."""

    @classmethod
    def for_extra(cls, name: str, extra: str, error: ImportError) -> MissingPackageError:
        """The error for a name that cannot be imported without an extra.

        It names the packages: pip finds an extra by the name of trainobs only on an index.
        """
        do = f"pip install {shlex.join(cls.PACKAGES[extra])}"
        return cls(f"{name} cannot be used here.", str(error), do)


class AccessCountsError(TrainobsError):
    """A file of access counts is missing, damaged or newer, or two do not fit each other."""


class FAEError(TrainobsError):
    """Hot rows cannot be chosen, read from a file, or used on this model."""
