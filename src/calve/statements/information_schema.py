"""The rows of INFORMATION_SCHEMA for a query."""

from collections.abc import Iterable

from calve.definitions.workplace import Workplace
from calve.metastore.config import MetastoreConfig
from calve.metastore.information import Line, current_lines


def lines_of(place: Workplace, names: Iterable[str]) -> dict[str, list[Line]]:
    """The rows of these tables, all of one moment."""
    wanted = sorted(names)
    if not wanted:
        return {}
    lines = current_lines(place.home, MetastoreConfig.load(place.home, place.environment))
    if lines is None:
        from calve.metastore.information_units import copy_lines
        from calve.metastore.tables import open_tables

        with place.metastore() as metastore:
            lines = copy_lines(open_tables(metastore), place.home)
    return {name: lines.of(name) for name in wanted}
