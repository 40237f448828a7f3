"""The environment of statements: a home folder with its definitions and secrets, and Spark on demand."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from calve.clock import IdSource, RandomIds
from calve.definitions.store import Definitions, DefinitionStore, HomeDefinitions
from calve.definitions.vault import Vault
from calve.metastore.config import MetastoreConfig
from calve.storage.local_folders import make_private
from calve.values import value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.metastore.metastore import Metastore


@value
class Workplace:
    """The environment in which statements are executed."""

    home: Path
    store: DefinitionStore
    vault: Vault
    ids: IdSource
    spark: "Callable[[], SparkSession]"
    """Starts Spark at the first call; views and queries of the metastore need it."""
    environment: Mapping[str, str]

    def definitions(self) -> Definitions:
        """The current definitions."""
        return Definitions(self.store.all())

    def metastore(self) -> "Metastore":
        """Open the metastore with the metadata of tables, at its configured location. The caller closes it."""
        from calve.metastore.metastore import Metastore  # noqa: PLC0415 - slow to import

        return Metastore(MetastoreConfig.load(self.home, self.environment))


def workplace(
    home: Path, spark: "Callable[[], SparkSession]", environment: Mapping[str, str] | None = None
) -> Workplace:
    """Open the workplace of a home folder."""
    home = home.absolute()
    with suppress(OSError):  # the first write reports why it fails
        make_private(home)
    given = os.environ if environment is None else environment
    return Workplace(home, HomeDefinitions(home, given), Vault(home, given), RandomIds(), spark, given)
