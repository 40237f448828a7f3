"""The configuration of a metastore, the layers it comes from, and the locations that follow from it.

    defaults  <  metastore-distribution.toml  <  metastore-override.toml  <  environment

The files are TOML; both are optional. Keys, below `calve.metastore`:

    config.properties.*                   of the file system and the catalog client (s3.endpoint = ...)
    catalog.*                             type, uri, ... of the catalog; namespace. Default: a SQLite file
    iceberg.location.base_path            a folder or a URI. Default: the home folder
    iceberg.location.relative_path        below it
    iceberg.expiration.period.*           days, hours, minutes, seconds, millis: added up; 0 disables expiry by age
    iceberg.common.properties.*           table properties of all components
    iceberg.components.<name>.location    below the two paths
    iceberg.components.<name>.properties.*   override the common ones; an empty value removes a property

In the environment, `CALVE_METASTORE__ICEBERG__LOCATION__BASE_PATH` and so on: `__` separates levels. In the name of a
property `__` is a dot and `_` a hyphen, as in `..__COMMON__PROPERTIES__WRITE__METADATA__PREVIOUS_VERSIONS_MAX`.

A component's files are at base path + relative path + location of the component + storage keys. A storage key may have
several levels (`/tmp/nation`); leading and trailing slashes are ignored. Levels that would leave the folder (`.`, `..`)
are rejected. Characters with a meaning in a location are percent-encoded.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from calve.errors import InvalidInput
from calve.model.names import path_segment
from calve.storage.local_folders import location_of
from calve.values import value

DISTRIBUTION: Final = "metastore-distribution.toml"
OVERRIDE: Final = "metastore-override.toml"
_ROOT: Final = ("calve", "metastore")
_VARIABLE: Final = "CALVE_METASTORE__"

DEFAULTS: Final[Mapping[str, str]] = {
    "iceberg.location.relative_path": "metastore",
    "catalog.namespace": "metastore",
    "iceberg.common.properties.write.metadata.delete-after-commit.enabled": "true",
    "iceberg.common.properties.write.metadata.previous-versions-max": "20",
    "iceberg.common.properties.write.parquet.compression-codec": "zstd",
    "iceberg.components.tables.location": "tables",
    "iceberg.components.views.location": "views",
    "iceberg.components.secrets.location": "secrets",
    "iceberg.components.connections.location": "connections",
    "iceberg.components.sources.location": "sources",
    "iceberg.components.sinks.location": "sinks",
}

_UNITS: Final = {"millis", "seconds", "minutes", "hours", "days"}
_KEYS: Final = re.compile(
    r"config\.properties\..+|catalog\.[^.].*|iceberg\.location\.(base|relative)_path|iceberg\.expiration\.period\.[^.]+"
    r"|iceberg\.common\.properties\..+|iceberg\.components\.[^.]+\.(location|properties\..+)"
)


@value
class ComponentConfig:
    """The location of a component, and the properties of its table."""

    location: str
    properties: Mapping[str, str] = field(default_factory=dict)


@value
class MetastoreConfig:
    """A complete configuration."""

    base_path: str
    relative_path: str = "metastore"
    namespace: str = "metastore"
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of the catalog; empty for a SQLite file beside the components."""
    io_properties: Mapping[str, str] = field(default_factory=dict)
    expiration: timedelta = timedelta(0)
    common_properties: Mapping[str, str] = field(default_factory=dict)
    components: Mapping[str, ComponentConfig] = field(default_factory=dict)

    def properties_of(self, component: str) -> dict[str, str]:
        """The properties of a component's table."""
        own = self.components[component].properties if component in self.components else {}
        return {name: value for name, value in {**self.common_properties, **own}.items() if value != ""}

    @classmethod
    def load(cls, home: Path, environment: Mapping[str, str]) -> "MetastoreConfig":
        """Load the configuration of a home folder. Raises InvalidInput, which names the layer and the key."""
        layers = [
            ("the defaults", {**DEFAULTS, "iceberg.location.base_path": str(home)}),
            *((str(home / name), _file(home / name)) for name in (DISTRIBUTION, OVERRIDE)),
            ("the environment", _variables(environment)),
        ]
        merged: dict[str, str] = {}
        for place, layer in layers:
            for key in layer:
                if not _KEYS.fullmatch(key):
                    raise InvalidInput(f'the metastore has no setting "{key}"', detail=f"It is in {place}.")
            merged |= layer
        return cls.of(merged)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "MetastoreConfig":
        """Build the configuration from settings by their full keys."""
        catalog = _below(settings, "catalog.")
        names = {key.split(".")[2] for key in settings if key.startswith("iceberg.components.")}
        return cls(
            base_path=_needed(settings, "iceberg.location.base_path"),
            relative_path=_needed(settings, "iceberg.location.relative_path"),
            namespace=catalog.pop("namespace", "metastore"),
            catalog=catalog,
            io_properties=_below(settings, "config.properties."),
            expiration=period(_below(settings, "iceberg.expiration.period.")),
            common_properties=_below(settings, "iceberg.common.properties."),
            components={
                name: ComponentConfig(
                    _needed(settings, f"iceberg.components.{name}.location"),
                    _below(settings, f"iceberg.components.{name}.properties."),
                )
                for name in sorted(names)
            },
        )


def period(amounts: Mapping[str, str]) -> timedelta:
    """Add up amounts by unit. There are no units longer than days."""
    total = timedelta(0)
    for unit, amount in amounts.items():
        if unit not in _UNITS:
            raise InvalidInput(
                f'the expiration period has no unit "{unit}"', hint=f"Units are {', '.join(sorted(_UNITS))}."
            )
        try:
            total += timedelta(**{"milliseconds" if unit == "millis" else unit: int(amount)})
        except (ValueError, OverflowError) as error:
            raise InvalidInput(f'the expiration period cannot be "{amount}" {unit}', detail=str(error)) from error
    return total


def _file(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("a configuration file of the metastore cannot be read", detail=f"{path}: {error}") from error
    import tomllib  # noqa: PLC0415 - most homes have no such file, and commands should answer at once

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("a configuration file of the metastore cannot be read", detail=f"{path}: {error}") from error
    prefix = ".".join(_ROOT) + "."
    found = dict(_flat(content, ()))
    strange = [key for key in found if not key.startswith(prefix)]
    if strange:
        raise InvalidInput(
            f'"{strange[0]}" is not a setting of the metastore',
            detail=f"It is in {path}.",
            hint=f"Keys begin with {prefix}",
        )
    return {key.removeprefix(prefix): value for key, value in found.items()}


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, (*path, name))
    elif isinstance(value, bool):
        yield ".".join(path), str(value).lower()
    elif isinstance(value, str | int | float):
        yield ".".join(path), str(value)
    else:
        raise InvalidInput(f'the setting "{".".join(path)}" cannot be a {type(value).__name__}')


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        _key(name.removeprefix(_VARIABLE)): value for name, value in environment.items() if name.startswith(_VARIABLE)
    }


def _key(variable: str) -> str:
    head, mark, tail = variable.lower().partition("__properties__")
    return head.replace("__", ".") + (f".properties.{tail.replace('__', '.').replace('_', '-')}" if mark else "")


def _below(settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def _needed(settings: Mapping[str, str], key: str) -> str:
    value = settings.get(key, "")
    if not value:
        raise InvalidInput(f'the setting "{key}" of the metastore has no value', hint="Set it.")
    return value


_LONGEST = 255
"""The most bytes in a folder name on most file systems."""


def below(base: str, *parts: str) -> str:
    """A location below a base, which is a local path or a URI. Raises InvalidInput for invalid folder names."""
    levels = [_folder(level) for part in parts for level in _levels(part)]
    if "://" not in base:
        return location_of(Path(base).absolute().joinpath(*levels))
    return "/".join([base.rstrip("/"), *levels])


def data_location(component: str, keys: Iterable[str], file_name: str) -> str:
    """The location of a file of a component's partition."""
    levels = [_folder(level) for key in keys for level in _levels(key)]
    return "/".join([component.rstrip("/"), *levels, file_name])


def _levels(text: str) -> list[str]:
    levels = [level for level in text.split("/") if level]
    if {".", ".."} & set(levels):
        raise InvalidInput(
            f'"{text}" cannot name a folder of the metastore',
            detail="It would leave its parent folder.",
            hint="Remove the levels . and ..",
        )
    return levels


def _folder(level: str) -> str:
    name = path_segment(level)
    if len(name.encode()) > _LONGEST:
        raise InvalidInput(
            f'"{level[:40]}..." is too long for a folder name',
            detail=f"Got {len(name.encode())} bytes, expected at most {_LONGEST}.",
        )
    return name
