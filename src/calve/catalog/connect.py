"""Connections to catalogs. Every sink has its own catalog object: pyiceberg's REST client is not thread-safe."""

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic_core import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchPropertyException
from sqlalchemy import URL, make_url

from calve.catalog.checked import Checked
from calve.catalog.embedded import EmbeddedCatalog
from calve.catalog.failures import trying
from calve.catalog.guarded import Guarded, local_files
from calve.catalog.properties import warn_of_open_login
from calve.catalog.rest import RestClient
from calve.catalog.version_hint import HomeCatalog
from calve.errors import InvalidInput
from calve.model.connection import DEFAULT_CATALOG_NAME
from calve.storage.aws import glue_properties
from calve.storage.filesystems import StoreIO
from calve.storage.local_folders import location_of, make_private
from calve.suggest import suggestion

__all__ = ["Catalog", "connect_embedded", "location_of", "open_catalog", "sqlite_uri"]

_SQL, _GLUE = "sql", "glue"
_CLASSES: Mapping[str, tuple[str, str]] = {
    "rest": ("calve.catalog.rest", "RestClient"),
    _SQL: ("pyiceberg.catalog.sql", "SqlCatalog"),
    _GLUE: ("calve.catalog.glue", "GlueClient"),
    "hive": ("calve.catalog.hive", "HiveClient"),
}
_LOGINS = frozenset({"credential", "header.Authorization", "token"})
_EXTRAS: Mapping[str, str] = {_SQL: "postgres", _GLUE: "aws"}
"""Extras of calve that a catalog needs, where their names differ from its type."""
CATALOG_NAME = "catalog-name"

STORE_IO = {"py-io-impl": f"{StoreIO.__module__}.{StoreIO.__name__}"}
"""Makes pyiceberg read and write files with calve's filesystems, and sync them."""


def connect_embedded(home: Path) -> Catalog:
    """Open the catalog of a home folder: `catalog.db` and `warehouse/` in it, both created when missing."""
    home = home.absolute()
    with trying(f'opening the catalog in "{home}"'):
        make_private(home / "warehouse")
        uri = sqlite_uri(home / "catalog.db")
        warehouse = location_of(home / "warehouse")
        return HomeCatalog(DEFAULT_CATALOG_NAME, uri=uri, warehouse=warehouse, **STORE_IO)


def sqlite_uri(file: Path) -> str:
    """The URI of a catalog in a SQLite file."""
    return URL.create("sqlite", database=str(file.absolute())).render_as_string()


def open_catalog(properties: Mapping[str, str], *, name: str = DEFAULT_CATALOG_NAME) -> Catalog:
    """Open a catalog of any supported type, by pyiceberg's properties (`type`, `uri`, `warehouse`, ...).

    `catalog-name` names a SQL catalog, which stores that name with every table.
    """
    settings = {**STORE_IO, **properties}
    name = settings.pop(CATALOG_NAME, name)
    kind = settings.setdefault("type", _type_of(settings.get("uri", ""))).lower()
    check_catalog_type(kind)
    with trying(f"connecting to the catalog at {_shown(settings.get('uri', 'no uri'))}"):
        try:
            return _opened(kind, name, settings | local_files(settings))
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"a package for catalogs of type {kind} is missing",
                detail=f"{error}.",
                hint=f'Install it with pip install "calve[{_EXTRAS.get(kind, kind)}]".',
            ) from error
        except KeyError as error:
            raise InvalidInput("the catalog's properties are incomplete", detail=f"{error} is missing.") from error
        except ValidationError:  # a ValueError, too: a response that cannot be parsed, such as the page of a proxy
            raise
        except (ValueError, NoSuchPropertyException) as error:
            raise InvalidInput("the catalog's properties are incomplete", detail=str(error)) from error


def check_catalog_type(kind: str) -> None:
    """Raise InvalidInput for an unknown type of catalogs."""
    if kind.lower() not in _CLASSES:
        raise InvalidInput(
            f'invalid catalog type "{kind}"',
            detail=f"Expected one of: {', '.join(_CLASSES)}.",
            hint=suggestion(kind, _CLASSES),
        )


def _type_of(uri: str) -> str:
    """The type of a catalog by its URI."""
    scheme = uri.partition(":")[0]
    return {"http": "rest", "https": "rest", "thrift": "hive"}.get(scheme, _SQL)


def _opened(kind: str, name: str, settings: dict[str, str]) -> Catalog:
    if _LOGINS & settings.keys():
        warn_of_open_login(settings.get("uri", ""), "the catalog")
    if "credential" in settings:
        warn_of_open_login(settings.get("oauth2-server-uri", ""), "the catalog")
    if kind == _SQL and settings.get("uri", "").startswith("sqlite:"):
        return EmbeddedCatalog(name, **settings)
    if kind == _SQL and settings.get("uri", "").startswith("postgresql"):
        settings["uri"] = _with_time_out(settings["uri"])
    return _catalog_class(kind)(name, **settings, **(glue_properties(settings) if kind == _GLUE else {}))


@cache
def _catalog_class(kind: str) -> type[Catalog]:
    """The class of pyiceberg, guarded and checked. Raises ModuleNotFoundError when a dependency is missing."""
    module, name = _CLASSES[kind]
    found: type[Catalog] = getattr(importlib.import_module(module), name)
    return found if issubclass(found, RestClient) else type(name, (Checked, Guarded, found), {})


def _shown(uri: str) -> str:
    """A URI without its password."""
    login, at, rest = uri.rpartition("@")
    return f"{login.rpartition(':')[0]}@{rest}" if at and ":" in login.partition("//")[2] else uri


def _with_time_out(uri: str) -> str:
    url = make_url(uri)
    found = url if "connect_timeout" in url.query else url.update_query_dict({"connect_timeout": "10"})
    return found.render_as_string(hide_password=False)
