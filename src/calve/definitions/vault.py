"""Values of secrets. A secret from the environment or a file is read when it is used; a literal one is stored here.

One file per secret, mode 0600, in a folder with mode 0700. Definitions refer to a stored secret as a file with the
prefix `vault:`; its text is stored nowhere else.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from calve.definitions.objects import Definition
from calve.errors import InvalidInput
from calve.sql.parts import FromEnvironment, FromFile, FromLiteral
from calve.sql.statements import CreateSecret
from calve.storage import durable

KEPT: Final = "vault:"


class Vault:
    """The stored secrets of a home folder."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._folder = home / "secrets"
        self._environment = environment

    def keep(self, uid: str, text: str) -> None:
        """Store or replace a literal secret. Raises TransientError if that fails."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._folder / f".{uid}.{os.getpid()}"
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / uid)
            durable.sync_folder(self._folder)
        except OSError as error:
            from calve.catalog.failures import transient  # noqa: PLC0415 - slow to import

            raise transient("storing a secret in the home folder failed", error) from error

    def forget(self, uid: str) -> None:
        """Remove a stored secret, if there is one."""
        (self._folder / uid).unlink(missing_ok=True)

    def kept(self, uid: str) -> str | None:
        """The text of a stored secret; None if there is none."""
        file = self._folder / uid
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def value(self, definition: Definition) -> str:
        """The text of a secret from its origin. Raises InvalidInput if it is unavailable."""
        statement = definition.statement
        if not isinstance(statement, CreateSecret):
            raise InvalidInput(f"{definition.label} is not a secret")
        match statement.origin:
            case FromEnvironment(variable):
                value = self._environment.get(variable)
                if value is None:
                    raise _unreadable(definition, f"The environment variable {variable} is not set.")
                return value
            case FromFile(path) if path.startswith(KEPT):
                value = self.kept(path.removeprefix(KEPT))
                if value is None:
                    raise _unreadable(definition, "Its text is missing from the home folder.")
                return value
            case FromFile(path):
                try:
                    return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
                except (OSError, UnicodeDecodeError) as error:
                    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                    raise _unreadable(definition, f"The file {path} could not be read: {reason}.") from error
            case FromLiteral():
                raise _unreadable(definition, "It was never stored.")


def is_kept(definition: Definition) -> bool:
    """Whether the text of a secret is stored in the vault."""
    statement = definition.statement
    if not isinstance(statement, CreateSecret) or not isinstance(statement.origin, FromFile):
        return False
    return statement.origin.path.startswith(KEPT)


def _unreadable(definition: Definition, detail: str) -> InvalidInput:
    return InvalidInput(f"{definition.label} has no value", detail=detail, hint="Set it, or ALTER SECRET.")
