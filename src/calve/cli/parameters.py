"""Converts the usual values of arguments and options without pydantic, whose import takes 0.1 s of CPU.

typer converts a value by an object that it makes when a parameter first needs it, with pydantic. A text for a text, a
choice in its very spelling, a number that is a default, and a path that is readable or not there need nothing of it.
For every other value typer's own object is made, so errors are typer's. Versions of typer that convert in another way
are left alone.
"""

import os
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

_MADE_LATER = "_runtime_param"
"""The attribute in which a parameter of typer keeps its converting object, None until it is made."""


class _Unconverted(Exception):
    """A value is left to typer."""


class _Conversion:
    """Stands in for the object that typer would make for one parameter."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """What a parameter's value is, in the declared type."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return _converted(value, param.type_descriptor.annotation, param.type_descriptor.parameter_info)
        except _Unconverted:
            setattr(param, _MADE_LATER, None)
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _converted(value: Any, declared: Any, info: Any) -> Any:
    if info.parser is not None or info.path_type is not None:
        raise _Unconverted
    if get_origin(declared) is list and isinstance(value, list | tuple):
        return [_converted(one, get_args(declared)[0], info) for one in value]
    if not isinstance(declared, type):
        raise _Unconverted
    if declared is str and isinstance(value, str):
        return value
    if issubclass(declared, Enum):
        return _member(value, declared)
    if declared is int and type(value) is int and _is_within(value, info):
        return value
    if declared is Path and isinstance(value, str | Path) and _is_plain_path(value, info):
        return Path(value)
    raise _Unconverted


def _member(value: Any, choices: type[Enum]) -> Enum:
    for one in choices:
        if value is one or (type(value) is str and value == one.value):
            return one
    raise _Unconverted


def _is_within(value: int, info: Any) -> bool:
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)


def _is_plain_path(value: str | Path, info: Any) -> bool:
    wanted = info.exists or info.writable or info.resolve_path or not (info.file_okay and info.dir_okay)
    return not wanted and (os.access(value, os.R_OK) or not os.path.lexists(value))


def _unburdened(params: list[Any]) -> list[Any]:
    """The parameters, of which none has typer's object before it needs it."""
    for param in params:
        if getattr(param, _MADE_LATER, param) is None:
            setattr(param, _MADE_LATER, _Conversion())
    return params


class InstantCommand(TyperCommand):
    """A command that imports pydantic only for unusual values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _unburdened(super().get_params(ctx))


class InstantCommands(TyperGroup):
    """All commands; its own options import pydantic only for unusual values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _unburdened(super().get_params(ctx))
