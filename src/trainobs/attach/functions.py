"""Where a process has the functions of torch that show its steps."""

from __future__ import annotations

from typing import NamedTuple

from trainobs.attach.process import MappedFile, Target, out_of_reach
from trainobs.probes.attached_backend import FUNCTIONS
from trainobs.probes.elf import ElfError, Library

_OF_STEPS = frozenset({"tobs_backward", "tobs_named"})

NONE_FOUND = f"its torch has none of {', '.join(FUNCTIONS.values())}"


class TorchFunction(NamedTuple):
    """A function of a library, and the program of `FUNCTIONS` that is to run there.

    Attributes:
        program: its name.
        file: the library, as this process finds it.
        offset: of the function in the file.
    """

    program: str
    file: str
    offset: int


def places_in(process: Target) -> list[TorchFunction]:
    """Where its libraries of torch have these functions; nothing if none of them shows steps.

    Raises:
        AttachError: a library cannot be read.
    """
    found = [place for mapped in process.libraries.values() for place in _places(process, mapped)]
    return found if _OF_STEPS & {place.program for place in found} else []


def _places(process: Target, mapped: MappedFile) -> list[TorchFunction]:
    try:
        library = Library(mapped.file)
    except (OSError, ElfError) as error:
        found = f"{mapped.path} cannot be read: {error}"
        raise out_of_reach(process.tgid, found) from error
    try:
        places = {program: library.offset_of(name) for program, name in FUNCTIONS.items()}
    finally:
        library.close()
    return [
        TorchFunction(program, mapped.file, at) for program, at in places.items() if at is not None
    ]
