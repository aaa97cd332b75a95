"""Memory that was allocated far from the CPU that asked for it, as NUMA statistics tell it.

Source: Documentation/admin-guide/numastat.rst; mm/vmstat.c counts pages in `other_node`.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainobs.host.procfs import PAGE_BYTES, READ_SIZE, ProcFile, keep, number_behind

NODES = Path("/sys/devices/system/node")


class RemoteMemory:
    """Memory of the whole machine that was allocated on another node than the asking CPU's.

    Attributes:
        names: the catalogue name; none on a machine of one node, where nothing is read.
    """

    def __init__(self, nodes: Path = NODES) -> None:
        kept = [keep(path / "numastat") for path in sorted(nodes.glob("node[0-9]*"))]
        self._files: tuple[ProcFile, ...] = tuple(file for file in kept if file is not None)
        if len(self._files) < 2:
            self.close()
            self._files = ()
        self.names = ("memory/numa_remote_bytes",) if self._files else ()

    def totals(self) -> tuple[int, ...]:
        """Bytes since the machine started, as many as there are names.

        Raises:
            OSError: it was closed.
        """
        raws = [os.pread(file.fd, READ_SIZE, 0) for file in self._files]
        pages = sum(number_behind(b"other_node ", raw) for raw in raws)
        return (PAGE_BYTES * pages,) if raws else ()

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        for file in self._files:
            file.close()
