"""Whether a seccomp filter ends the process that calls bpf(2), and not only refuses it.

That is what `SystemCallFilter=` of a systemd unit does by default. No file tells it, so a process
of its own makes the call; only where there is a filter.
"""

from __future__ import annotations

import signal
import subprocess

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.interpreter import fresh_python
from trainobs.probes.functions import bpf_number
from trainobs.probes.obstacles import has_seccomp_filter

_CODE = (
    "import ctypes, os; libc = ctypes.CDLL(None); "
    "libc.prctl(4, 0, 0, 0, 0); "  # PR_SET_DUMPABLE: who is ended leaves no core file
    "os.write(1, b'.'); libc.syscall(ctypes.c_long(int(sys.argv[1])), 0, None, 0)"
)

_TIMEOUT_S = 10.0


def need_bpf_to_return() -> None:
    """Refuse to load anything where a call of bpf(2) would end this process.

    Where that cannot be tried, nothing is known, and nothing refused.

    Raises:
        ProbeError: NO_PERMISSION: it would.
    """
    number = bpf_number()
    if number is None or not has_seccomp_filter():
        return
    nowhere = subprocess.DEVNULL
    try:
        command = fresh_python(_CODE, str(number))
        done = subprocess.run(
            command,
            stdin=nowhere,
            stdout=subprocess.PIPE,
            stderr=nowhere,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    # One that wrote nothing was ended before: by another call that the filter does not let pass.
    if done.stdout and done.returncode == -signal.SIGSYS:
        raise ProbeError(
            ProbeCause.NO_PERMISSION,
            "cannot load the probes",
            "a seccomp filter ends every process that calls bpf(2)",
            "allow bpf(2) in that filter (`SystemCallFilter=` of a systemd unit), or use "
            "trainobs-probed of the host",
        )
