"""CREATE VIEW: what a query reads, and whether it can be kept up to date."""

from dataclasses import dataclass

from calve.definitions.store import Definitions
from calve.errors import InvalidInput
from calve.runtime.workplace import Workplace
from calve.sql.statements import CreateView


@dataclass(frozen=True)
class PlannedView:
    """A view that can be kept. `uses` are uids of the source or view below."""

    uses: tuple[str, ...]


def plan_view(place: Workplace, statement: CreateView, definitions: Definitions) -> PlannedView:
    """Check a view."""
    raise InvalidInput("views are not supported yet", detail=f'"{statement.name}"')
