"""Every error that trainobs raises.

TrainobsError
├── SettingError (ValueError)   a parameter has a bad value
├── ProbeError                  the kernel side cannot do what was asked for by name
├── GpuError                    NVML is missing, or cannot read the GPU in question
└── RunLogError                 a run directory cannot be read

Each message has three parts: what failed, what was found, what to do.
"""

from __future__ import annotations

from enum import Enum


class ProbeCause(Enum):
    """Why the kernel side is not available."""

    NO_LIBBPF = "libbpf is missing"
    NO_OBJECT = "the compiled probes are missing"
    NO_BTF = "the kernel has no BTF"
    NO_PERMISSION = "permission denied"
    NO_TRACEPOINT = "the kernel lacks the tracepoint"
    NO_SERVICE = "no service serves this process"
    REFUSED = "the kernel refused the program"


class TrainobsError(Exception):
    """Base of all errors raised by trainobs."""

    def __init__(self, failed: str, found: str, do: str) -> None:
        super().__init__(f"{failed}\n  found: {found}\n  do:    {do}")
        self.failed = failed
        self.found = found
        self.do = do


class SettingError(TrainobsError, ValueError):
    """A parameter has a value that trainobs cannot use."""


class ProbeError(TrainobsError):
    """The kernel side cannot do what was asked for."""

    def __init__(self, cause: ProbeCause, failed: str, found: str, do: str) -> None:
        super().__init__(failed, found, do)
        self.cause = cause


class GpuError(TrainobsError):
    """NVML is missing, or cannot read the GPU in question."""


class RunLogError(TrainobsError):
    """A run directory is missing, unreadable, or of another schema."""
