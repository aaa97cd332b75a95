"""Tables of the run log on their way to the disk.

What encodes them is imported with the first table that is stored: pyarrow takes a tenth of a second
and some 29 MiB, which the start of a training is spared.
"""

from __future__ import annotations

from pathlib import Path

from trainobs.core.files import replace_file
from trainobs.core.unforked import unforked
from trainobs.runlog.table import Table


def store(path: Path, table: Table) -> None:
    """Write a file that a reader finds whole, or as it was.

    Raises:
        OSError: the disk refused.
    """
    with unforked():
        from trainobs.runlog.arrow import encode
    replace_file(path, encode(table))
