"""Files of named arrays and facts that are either whole or refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import FAEError, shown, with_article
from trainobs.core.files import NotRegularError, npz_members, replacing

_FACTS = "facts"
_DIGEST = "digest"


Content = TypeVar("Content")
Kind = TypeVar("Kind")


def check_is(kind: type[Kind], value: Any) -> Kind:
    """A fact of a type, and no other: True is no number.

    Raises:
        ValueError: it is of another.
    """
    if type(value) is not kind:
        raise ValueError(f"{shown(value)}, where {with_article(kind.__name__)} was expected")
    return value


class ArchiveKind(NamedTuple):
    """What a file holds.

    Attributes:
        name: of the content, as it stands in the file and in messages.
        schema: number of the layout that this version writes, and the only one it reads.
        remedy: what to do about a file that cannot be read.
    """

    name: str
    schema: int
    remedy: str


def write_archive(
    path: str | os.PathLike[str],
    kind: ArchiveKind,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Write an npz without pickle, whole: a reader finds the old file or the new one.

    Equal content gives equal bytes.

    Args:
        path: the file; what was there is replaced.
        kind: what it holds.
        facts: whatever JSON can say.
        arrays: of numbers; order is kept.

    Raises:
        OSError: the directory is missing or not writable, the disk is full, or `path` is a device
            or a directory; it is as before.
    """
    place = Path(path)
    if place.exists() and not place.is_file():
        raise NotRegularError(path)
    head = {"kind": kind.name, "schema": kind.schema, "arrays": list(arrays), "facts": facts}
    encoded = np.frombuffer(json.dumps(head, allow_nan=True).encode(), dtype=np.uint8)
    members = {f"array-{i}": array for i, array in enumerate(arrays.values())}
    digest = _digest([encoded, *members.values()])
    with replacing(place) as file:
        np.savez(file, **{_FACTS: encoded, _DIGEST: digest}, **members)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def read_archive(
    path: str | os.PathLike[str],
    kind: ArchiveKind,
    make: Callable[[dict[str, Any], dict[str, NDArray[Any]]], Content],
) -> Content:
    """What `make` makes of the facts and arrays that `write_archive` put into a file.

    Whatever it finds wrong with them, the file is refused.

    Raises:
        FAEError: there is no such file; it holds something else, is damaged, or was written by a
            version of trainobs with another layout.
    """
    try:
        with npz_members(path) as members:
            return make(*_read(members, kind))
    except FileNotFoundError:
        found = "no such file"
    except (OSError, ValueError) as error:
        found = str(error)
    raise FAEError(f"cannot read the {kind.name} in {path}", found, kind.remedy)


def _read(
    members: Mapping[str, NDArray[Any]], kind: ArchiveKind
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    encoded = members[_FACTS]
    head = json.loads(encoded.tobytes())
    if head["kind"] != kind.name:
        raise ValueError(f"a {head['kind']}, not a {kind.name}")
    if head["schema"] != kind.schema:
        raise ValueError(f"layout {head['schema']}; this version of trainobs reads {kind.schema}")
    arrays = {name: members[f"array-{i}"] for i, name in enumerate(head["arrays"])}
    if not np.array_equal(members[_DIGEST], _digest([encoded, *arrays.values()])):
        raise ValueError("the checksum does not fit the content")
    return head["facts"], arrays


def _digest(arrays: list[NDArray[Any]]) -> NDArray[np.uint8]:
    """Of values, types and shapes alike."""
    digest = hashlib.blake2b(digest_size=32)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)
