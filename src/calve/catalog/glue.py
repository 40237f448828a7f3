"""The client of Glue: pyiceberg's, except that it sends a commit only once. Needs boto3, the extra `aws`.

AWS's client retries a request without a response. If the first request was applied, the retry conflicts with it, and
looks like a conflict with another writer.
"""

from typing import Any

from botocore.session import get_session
from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog

_LOGIN = ("access-key-id", "secret-access-key", "session-token", "profile-name")


class GlueClient(GlueCatalog):
    """A catalog in Glue. A session among the properties has the credentials of a role, which win over other ones."""

    def __init__(self, name: str, **properties: Any) -> None:
        of_role = properties.pop(BOTOCORE_SESSION, None)
        left_out = {f"{prefix}.{part}" for prefix in ("glue", "client") for part in _LOGIN if of_role is not None}
        given = {key: value for key, value in properties.items() if key not in left_out}
        given[BOTOCORE_SESSION] = of_role or get_session()  # it parses the description of Glue once for both clients
        super().__init__(name, **given)
        self._sends_once = GlueCatalog(name, **{**given, GLUE_MAX_RETRIES: 0})
        self.properties = properties  # tables get them: all are texts

    def _update_glue_table(self, *arguments: Any, **named: Any) -> None:
        self._sends_once._update_glue_table(*arguments, **named)  # noqa: SLF001 - of the same class
