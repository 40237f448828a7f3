"""The component `views`: a name and the query behind it, one file each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from calve.errors import TerminalError
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


class ViewRequests:
    """Queries of the component of views."""

    def __init__(self, views: Component[ViewUnit]) -> None:
        self._views = views

    def view(self, view: ViewId) -> ViewUnit | None:
        """One view."""
        found = self._views.read(ViewType.VIEW, where=view.condition())
        if len(found) > 1:
            raise TerminalError(f"the metastore holds {len(found)} units for {view}", detail="Expected one.")
        return found[0] if found else None

    def views(self, storage_plugin: str, workspace: str | None = None) -> list[ViewUnit]:
        """The views of a storage plugin, or of one of its workspaces, by name."""
        where = eq("storage_plugin", storage_plugin)
        if workspace is not None:
            where &= eq("workspace", workspace)
        return sorted(self._views.read(ViewType.VIEW, where=where), key=lambda unit: unit.view_name or "")


def open_views(metastore: Metastore) -> Component[ViewUnit]:
    """The component of views of a metastore."""
    return metastore.component(NAME, ViewUnit)
