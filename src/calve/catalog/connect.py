"""Connections to catalogs. A catalog object is used by one sink: pyiceberg's REST client is not made for sharing."""

from collections.abc import Mapping
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchPropertyException, NotInstalledError
from sqlalchemy import URL, make_url

from calve.catalog.aws import glue_properties
from calve.catalog.embedded import EmbeddedCatalog
from calve.catalog.failures import trying
from calve.catalog.rest import RestClient
from calve.catalog.stores import StoreIO
from calve.errors import InvalidInput

__all__ = ["Catalog", "connect_embedded", "location_of", "open_catalog", "sqlite_uri"]

DEFAULT_NAME = "calve"
"""SQL catalogs keep this name beside every table: others find the tables under the same name only."""


def connect_embedded(home: Path) -> Catalog:
    """The catalog of a home folder: `catalog.db` and `warehouse/` in it, both made when missing."""
    home = home.absolute()
    with trying(f'opening the catalog in "{home}"'):
        (home / "warehouse").mkdir(parents=True, exist_ok=True)
        uri = sqlite_uri(home / "catalog.db")
        return EmbeddedCatalog(DEFAULT_NAME, uri=uri, warehouse=location_of(home / "warehouse"))


def sqlite_uri(file: Path) -> str:
    """The address of a catalog in a SQLite file."""
    return URL.create("sqlite", database=str(file.absolute())).render_as_string()


def open_catalog(properties: Mapping[str, str], *, name: str = DEFAULT_NAME) -> Catalog:
    """A catalog of any type that pyiceberg knows, by pyiceberg's properties (`type`, `uri`, `warehouse`, ...)."""
    settings = {"py-io-impl": f"{StoreIO.__module__}.{StoreIO.__name__}", **properties}
    with trying(f"connecting to the catalog at {_shown(settings.get('uri', 'no uri'))}"):
        if settings.get("type", "sql") == "sql" and settings.get("uri", "").startswith("sqlite:"):
            return EmbeddedCatalog(name, **settings)
        try:
            if settings.get("uri", "").startswith("postgresql"):
                settings["uri"] = _with_time_out(settings["uri"])
            if settings.get("type") == "rest":
                return RestClient(name, **settings)
            if settings.get("type") == "glue":
                return load_catalog(name, **settings, **glue_properties(settings))
            return load_catalog(name, **settings)
        except ModuleNotFoundError as error:
            raise InvalidInput(
                "a package for this catalog is missing",
                detail=f"{error}.",
                hint='Install it: pip install "calve[postgres]", "calve[aws]" for Glue, or "calve[hive]" for Hive.',
            ) from error
        except (ValueError, NoSuchPropertyException, NotInstalledError) as error:
            raise InvalidInput("the catalog's properties are not complete", detail=str(error)) from error


def _shown(uri: str) -> str:
    """An address without the password in it."""
    login, at, rest = uri.rpartition("@")
    return f"{login.rpartition(':')[0]}@{rest}" if at and ":" in login.partition("//")[2] else uri


def _with_time_out(uri: str) -> str:
    url = make_url(uri)
    found = url if "connect_timeout" in url.query else url.update_query_dict({"connect_timeout": "10"})
    return found.render_as_string(hide_password=False)


def location_of(folder: Path) -> str:
    """The location of a local folder as it is written into table metadata: a URI whose path is not percent-encoded.

    pyiceberg takes `#` and `?` in a URI for the start of fragment and query; a folder with one of them in its name is
    given as a plain path, which pyiceberg, DuckDB and Spark read as well.
    """
    path = str(folder.absolute())
    return path if set("#?") & set(path) else f"file://{path}"
