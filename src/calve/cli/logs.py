"""Log lines on stderr: short lines for people, or JSON for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        body = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            body["error"] = record.exc_info[0].__name__
        return json.dumps(body, ensure_ascii=False)


def log_to_stderr(form: LogFormat, *, quiet: bool) -> None:
    """Send calve's log lines to stderr: warnings for people (errors only if quiet), everything for machines."""
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("calve")
    logger.handlers = [handler]
    logger.propagate = False
    if form is LogFormat.JSON:
        handler.setFormatter(_Json())
        logger.setLevel(logging.INFO)
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.setLevel(logging.ERROR if quiet else logging.WARNING)
