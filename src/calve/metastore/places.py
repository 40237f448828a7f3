"""Where a component's files are: base path + relative path + location of the component + storage keys.

A storage key may have several levels (`/tmp/nation`); slashes at its ends do not count. A level that would lead
elsewhere (`.`, `..`) is refused. Characters that have a meaning in a location are written as `%` and their code.
"""

from collections.abc import Iterable
from pathlib import Path

from calve.catalog.connect import location_of
from calve.errors import InvalidInput
from calve.model.names import path_segment

_LONGEST = 255
"""Bytes in the name of a folder, in the filesystems of most machines."""


def below(base: str, *parts: str) -> str:
    """A location below a base, which is a local path or a URI."""
    levels = [_folder(level) for part in parts for level in _levels(part)]
    if "://" not in base:
        return location_of(Path(base).absolute().joinpath(*levels))
    return "/".join([base.rstrip("/"), *levels])


def data_location(component: str, keys: Iterable[str], file_name: str) -> str:
    """Where a file of a component's partition goes."""
    levels = [_folder(level) for key in keys for level in _levels(key)]
    return "/".join([component.rstrip("/"), *levels, file_name])


def _levels(text: str) -> list[str]:
    levels = [level for level in text.split("/") if level]
    if {".", ".."} & set(levels):
        raise InvalidInput(
            f'"{text}" cannot name a folder of the metastore',
            detail="It would lead out of the folder that it belongs to.",
            hint="Leave out the levels . and ..",
        )
    return levels


def _folder(level: str) -> str:
    name = path_segment(level)
    if len(name.encode()) > _LONGEST:
        raise InvalidInput(
            f'"{level[:40]}..." is too long for the name of a folder',
            detail=f"It takes {len(name.encode())} bytes; {_LONGEST} are possible.",
        )
    return name
