"""The client of Glue: pyiceberg's, except that it sends a commit only once. Needs boto3, the extra `aws`.

AWS's client retries a request without a response. If the first request was applied, the retry conflicts with it, and
looks like a conflict with another writer.
"""

from typing import Any

from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog


class GlueClient(GlueCatalog):
    """A catalog in Glue."""

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._sends_once = GlueCatalog(name, **{**properties, GLUE_MAX_RETRIES: 0})

    def _update_glue_table(self, *arguments: Any, **named: Any) -> None:
        self._sends_once._update_glue_table(*arguments, **named)  # noqa: SLF001 - of the same class
