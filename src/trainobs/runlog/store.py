"""Tables of the run log on their way to the disk.

What encodes them is imported with the first table that is stored: pyarrow takes a tenth of a second
and some 29 MiB, which the start of a training is spared.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from trainobs.core.files import replace_file
from trainobs.core.unforked import unforked, unforked_load
from trainobs.runlog.table import Table

_EXTENSIONS = ("lib", "_parquet")
"""Modules of pyarrow that all of Arrow's libraries that are used come with."""


def store(path: Path, table: Table) -> None:
    """Write a file that a reader finds whole, or as it was.

    Raises:
        OSError: the disk refused.
    """
    with unforked():
        if "pyarrow.lib" not in sys.modules:
            _load_libraries()
        from trainobs.runlog.arrow import encode
    replace_file(path, encode(table))


def _load_libraries() -> None:
    """Have the linker load Arrow's libraries without the interpreter's lock.

    `import` holds it while it waits for the disk, and so would the training thread. What fails here
    fails there, too, and is told.
    """
    with suppress(ImportError, ValueError, OSError, AttributeError):
        package = find_spec("pyarrow")
        places = package.submodule_search_locations if package else None
        for name in _EXTENSIONS if places else ():
            module = PathFinder.find_spec(f"pyarrow.{name}", places)
            if module and module.origin:
                with unforked_load():
                    ctypes.CDLL(None).dlopen(os.fsencode(module.origin), sys.getdlopenflags())
