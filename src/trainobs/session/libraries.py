"""Where code lives, as opposed to data."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/usr/share", "/etc")
_SYSTEM_PREFIXES = frozenset({Path("/"), Path("/usr"), Path("/usr/local")})


def library_roots() -> list[Path]:
    """Existing directories that hold Python code, shared libraries and system files.

    An interpreter's own prefix counts whole (a virtual environment), a system prefix does not.
    """
    paths = [Path(path) for path in _SYSTEM]
    paths += [Path(path) for path in sysconfig.get_paths().values()]
    paths += [Path(site.getusersitepackages())]
    paths += [Path(p) for p in (sys.prefix, sys.base_prefix) if Path(p) not in _SYSTEM_PREFIXES]
    # Not Path.is_dir, which raises where the user may not look.
    resolved = {path.resolve() for path in paths if os.path.isdir(path)}
    return sorted(resolved - _SYSTEM_PREFIXES)
