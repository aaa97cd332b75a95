"""A fresh interpreter beside this one, which finds what this one finds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_HOME = str(Path(__file__).parents[2])

_BEGIN = "import sys; n = int(sys.argv[1]); sys.path += sys.argv[2:n]; del sys.argv[1:n]; "


def fresh_python(code: str, *words: str) -> list[str]:
    """The command of one that executes `code`, with `words` as its `sys.argv[1:]`.

    It has this one's `sys.path` and none of Python's variables. `python -m` would look in the
    working directory first, in which somebody else may have put a `numpy.py`.

    Raises:
        OSError: what this process runs may be no interpreter, such as one inside another program.
    """
    if not re.fullmatch(r"(python|pypy)[\d.]*t?", Path(sys.executable or "").name):
        raise OSError(f"sys.executable is {sys.executable!r}, which may be no Python")
    places = [place for place in (*sys.path, _HOME) if place]
    begin = [sys.executable, "-I", "-S", "-c", _BEGIN + code, str(2 + len(places))]
    return [*begin, *places, *words]
