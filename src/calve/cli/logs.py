"""Log lines on stderr: short lines for people, or JSON for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from calve.cli.visible import visible


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least severe lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        body = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            body["error"] = record.exc_info[0].__name__
            body["traceback"] = self.formatException(record.exc_info)
        return json.dumps(body, ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    """Lines for people. They quote records, keys and names, which must not control the terminal."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is stderr at the time: a live table on the terminal replaces it, to print lines above itself."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(form: LogFormat, *, quiet: bool, level: LogLevel | None = None) -> None:
    """Send calve's log lines to stderr.

    Without a level: warnings for people (errors only if quiet), everything but debug lines for machines.
    """
    handler = _Stderr()
    logger = logging.getLogger("calve")
    logger.handlers = [handler]
    logger.propagate = False
    if form is LogFormat.JSON:
        handler.setFormatter(_Json())
        usual = logging.INFO
    else:
        handler.setFormatter(_Text())
        usual = logging.ERROR if quiet else logging.WARNING
    logger.setLevel(usual if level is None else level.value.upper())
