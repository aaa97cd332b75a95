"""Reading `run.json`, which anyone may have edited, cut short, or written with another tool."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any

from trainobs.core.catalogue.named import may_name_a_phase
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.errors import RunLogError, shown
from trainobs.core.files import open_regular
from trainobs.core.own_counter import OwnCounter
from trainobs.core.text import size
from trainobs.runlog import schema as names

_TYPES: Mapping[str, tuple[type, ...]] = {
    "clock": (dict,),
    "clock.wall_ns": (int,),
    "clock.monotonic_ns": (int,),
    "clock.boot_ns": (int,),
    "level": (str,),
    "world_size": (int,),
    "host": (dict,),
    "host.local_world_size": (int, NoneType),
    "host.cpu_count": (int, NoneType),
    "host.usable_cpu_count": (int, NoneType),
    "host.most_usable_cpu_count": (int, NoneType),
    "host.cpu_quota": (float, int, NoneType),
    "host.cpu_groups_hidden": (bool, NoneType),
    "host.memory_bytes": (int, NoneType),
    "host.memory_limit_bytes": (int, NoneType),
    "host.oom_kills_of": (str,),
    "host.hostname": (str,),
    "host.kernel": (str,),
    "capabilities": (dict,),
    "capabilities.*": (str,),
    "gpu": (dict,),
    "gpu.*": (str,),
    "tables": (list,),
    "tables.*": (dict,),
    "tables.*.name": (str,),
    "tables.*.row_count": (int,),
    "tables.*.dim": (int,),
    "tables.*.row_bytes": (int,),
    "tables.*.module": (str,),
    "tables.*.features": (list,),
    "tables.*.features.*": (str,),
    "tables.*.placement": (str,),
    "phases": (list,),
    "phases.*": (str,),
    "counters": (list,),
    "counters.*": (dict,),
    "counters.*.title": (str,),
    "counters.*.unit": (str,),
    "counters.*.probe": (str,),
    "settings": (dict,),
    "settings.loader_workers": (int, NoneType),
    "settings.job": (str,),
    "settings.steps": (str,),
    "settings.no_step": (str,),
    "settings.attached": (dict,),
    "settings.attached.pid": (int,),
    "settings.attached.steps": (str,),
    "settings.attached.events_per_step": (dict,),
    "settings.attached.events_per_step.*": (float, int),
    "settings.attached.periods": (list,),
    "settings.attached.periods.*": (dict,),
    "settings.attached.periods.*.count": (int,),
    "settings.attached.periods.*.begin_ns": (int,),
    "settings.attached.periods.*.end_ns": (int,),
    "settings.attached.periods.*.period_ns": (float, int),
    "settings.attached.periods.*.low_ns": (float, int, NoneType),
    "settings.attached.periods.*.high_ns": (float, int, NoneType),
    "loaders": (list,),
    "loaders.*": (dict,),
    "loaders.*.workers": (int,),
    "loaders.*.prefetch_factor": (int, NoneType),
    "loaders.*.iterable": (bool,),
    "loaders.*.shuffle": (bool, NoneType),
    "loaders.*.objects": (int,),
    "loaders.*.passes": (int,),
    "loaders.*.tensors_per_batch": (int, NoneType),
    "loaders.*.sampler": (dict, NoneType),
    "loaders.*.sampler.*": (int,),
    "loaders.*.told_of_passes": (bool,),
    "summary": (dict, NoneType),
    "summary.outcome": (str, NoneType),
    "summary.losses": (dict,),
    "summary.losses.*": (int,),
    "summary.dropped_steps": (int,),
    "summary.stored_steps": (int,),
    "summary.stored_rows": (dict,),
    "summary.stored_rows.*": (int,),
    "summary.lost_steps": (dict,),
    "summary.lost_steps.*": (int,),
    "summary.lost_because": (dict,),
    "summary.lost_because.*": (str,),
}
"""Fields the analysis relies on -> types they may have, if they are there; `*` is every key, or
every element of an array."""

_OF_A_COUNTER = tuple(field.name for field in fields(OwnCounter))
_OF_A_TABLE = {field.name for field in fields(EmbeddingTable) if field.default is MISSING}

_KINDS: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    NoneType: "null",
}

_BOUND = 1 << 63
"""What all numbers are below, as those of tables, but sums of squares: these below its square."""

_MOST_BYTES = 64 << 20
"""Of a file; 300,000 embedding tables take as much."""

_DEEPEST = 20
"""Levels of nesting, well above those of any run log and below Python's limit of recursion."""

_RESTORE = "restore the file from where the run wrote it"


def read_info(file: Path) -> Mapping[str, Any]:
    """The contents of a `run.json`, each field that the analysis uses of its type.

    Raises:
        RunLogError: it cannot be read, is not one of trainobs, or is of a newer schema.
    """
    info = _parse(file)
    if not isinstance(info, dict) or not {"schema", "trainobs", "clock"} <= info.keys():
        found, do = "not written by trainobs", "give the directory of a run log"
        raise cannot_read(file.parent, found, do)
    _require(file, info, {"schema": (int,), "trainobs": (str,)})
    if info["schema"] > names.SCHEMA:
        found = f"schema {info['schema']}, written by trainobs {info['trainobs']}"
        do = f"update trainobs, which knows schema {names.SCHEMA}"
        raise cannot_read(file.parent, found, do)
    _require(file, info, _TYPES)  # after the schema, because a newer one may have other types
    for table in info.get("tables", ()):
        if not table.keys() >= _OF_A_TABLE:
            missing = ", ".join(sorted(_OF_A_TABLE - table.keys()))
            raise cannot_read(file.parent, f"a table in {file.name} has no {missing}", _RESTORE)
    return info


def tables_of(info: Mapping[str, Any]) -> tuple[EmbeddingTable, ...]:
    """The embedding tables of a run, from what `read_info` returned."""
    known = {field.name for field in fields(EmbeddingTable)}
    return tuple(
        EmbeddingTable(**{name: value for name, value in table.items() if name in known})
        for table in info.get("tables", ())
    )


def phases_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The phases with a name of the user's, from what `read_info` returned."""
    return tuple(filter(may_name_a_phase, dict.fromkeys(info.get("phases", ()))))


def counters_of(info: Mapping[str, Any]) -> tuple[OwnCounter, ...]:
    """What programs of the user's counted, from what `read_info` returned."""
    told = (tuple(one.get(name, "") for name in _OF_A_COUNTER) for one in info.get("counters", ()))
    found = (OwnCounter(*words) for words in dict.fromkeys(told))
    whole = {counter.name: counter for counter in found if not counter.fault()}
    return tuple(whole.values())


def cannot_read(path: Path, found: str, do: str) -> RunLogError:
    """The error for a run directory that is there, but of no use."""
    return RunLogError(failed=f"The run log {path} cannot be read.", found=found, do=do)


def _parse(file: Path) -> object:
    try:
        with open_regular(file) as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            found = f"{file.name} has more than {size(_MOST_BYTES)}"
            raise cannot_read(file.parent, found, _RESTORE)
        document: object = json.loads(text, parse_float=_finite, parse_constant=_unknown)
    except OSError as error:
        do = "see that you may read it" if isinstance(error, PermissionError) else _RESTORE
        raise cannot_read(file.parent, f"{file.name}: {error.strerror or error}", do) from error
    except ValueError as error:
        raise cannot_read(file.parent, f"{file.name}: {error}", _RESTORE) from error
    except RecursionError as error:
        raise _too_deep(file) from error
    if _is_deep(document):
        raise _too_deep(file)
    return document


def _finite(number: str) -> float | None:
    """A number; what no float holds is unknown."""
    value = float(number)
    return value if math.isfinite(value) else None


def _unknown(constant: str) -> None:
    """NaN and Infinity, which are no JSON."""


def _too_deep(file: Path) -> RunLogError:
    return cannot_read(file.parent, f"{file.name} is nested too deeply", _RESTORE)


def _is_deep(document: object) -> bool:
    """Whether it nests deeper than what can be printed again."""
    level = [document]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _require(file: Path, info: object, types: Mapping[str, tuple[type, ...]]) -> None:
    for field, allowed in types.items():
        for name, value in _values(info, field.split(".")):
            if type(value) not in allowed:  # the exact type: True is an int to isinstance
                expected = " or ".join(_KINDS[kind] for kind in allowed)
                found = f"{name} in {file.name} is not {expected}"
                raise cannot_read(file.parent, found, _RESTORE)
            bound = _BOUND**2 if name.endswith("ns2") else _BOUND
            if isinstance(value, int | float) and not 0 <= value < bound:
                found = f"{name} in {file.name} is {shown(value)}"
                raise cannot_read(file.parent, found, _RESTORE)


def _values(value: object, keys: Sequence[str], name: str = "") -> Iterator[tuple[str, object]]:
    """Name and value of what stands at the end of `keys`, as often as it is there."""
    if not keys:
        yield name, value
    elif isinstance(value, list) and keys[0] == "*":
        for index, element in enumerate(value):
            yield from _values(element, keys[1:], f"{name}.{index}")
    elif isinstance(value, dict):
        for key in value if keys[0] == "*" else value.keys() & {keys[0]}:
            yield from _values(value[key], keys[1:], f"{name}.{key}" if name else key)
