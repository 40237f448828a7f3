"""What executing statements needs: a home folder with its definitions and secrets, and Spark when it is asked for."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from calve.clock import IdSource, RandomIds
from calve.definitions.store import Definitions, DefinitionStore, MetastoreDefinitions
from calve.definitions.vault import Vault
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.storage.filesystems import make_private


@dataclass(frozen=True)
class Workplace:
    """Where statements are executed."""

    home: Path
    store: DefinitionStore
    vault: Vault
    ids: IdSource
    spark: Callable[[], SparkSession]
    """Starts Spark when it is called first; views and questions to the metastore need it."""
    environment: Mapping[str, str]

    def definitions(self) -> Definitions:
        """What is defined now."""
        return Definitions(self.store.all())

    def metastore(self) -> Metastore:
        """The metastore with the metadata of tables, wherever the configuration puts it. Close it."""
        return Metastore(MetastoreConfig.load(self.home, self.environment))


def workplace(home: Path, spark: Callable[[], SparkSession], environment: Mapping[str, str] | None = None) -> Workplace:
    """The workplace of a home folder."""
    home = home.absolute()
    with suppress(OSError):  # whoever writes there first says why it cannot be
        make_private(home)
    given = os.environ if environment is None else environment
    return Workplace(home, MetastoreDefinitions(home, given), Vault(home, given), RandomIds(), spark, given)
