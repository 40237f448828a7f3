"""The component `views`: a name and the query behind it, one file each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from calve.metastore.component import Component
from calve.metastore.filters import Filter, all_of, eq
from calve.metastore.metastore import Metastore
from calve.metastore.units import Role, unit_field

NAME: Final = "views"


class ViewType(StrEnum):
    """What a unit describes."""

    VIEW = "VIEW"


@dataclass(frozen=True, kw_only=True)
class ViewUnit:
    """One view."""

    storage_plugin: str | None = unit_field(role=Role.STORAGE_KEY)
    workspace: str | None = unit_field(role=Role.STORAGE_KEY)
    view_name: str | None = unit_field(role=Role.STORAGE_KEY)
    metadata_type: ViewType | None = unit_field(role=Role.TYPE)
    owner: str | None = unit_field()
    sql: str | None = unit_field()
    schema: str | None = unit_field()
    """Columns and types as JSON, if known."""
    workspace_path: tuple[str, ...] | None = unit_field()
    """Where names in the query are looked up."""
    uid: str | None = unit_field()
    version: int | None = unit_field()
    uses: tuple[str, ...] | None = unit_field()
    """Uids or names of the objects that the query reads."""
    position: int | None = unit_field()
    """Orders views by their creation."""
    last_modified_time: int | None = unit_field()
    additional_metadata: str | None = unit_field()


@dataclass(frozen=True)
class ViewId:
    """A view by its three names."""

    storage_plugin: str
    workspace: str
    name: str

    def __str__(self) -> str:
        return f"{self.storage_plugin}.{self.workspace}.{self.name}"

    def condition(self) -> Filter:
        """Matches the unit of the view."""
        return all_of(
            eq("storage_plugin", self.storage_plugin), eq("workspace", self.workspace), eq("view_name", self.name)
        )


def open_views(metastore: Metastore) -> Component[ViewUnit]:
    """The component of views of a metastore."""
    return metastore.component(NAME, ViewUnit)
