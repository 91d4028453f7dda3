"""How a worker logs: readable lines, or JSON for a log collector."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from gangline.cli.output import printable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Level(StrEnum):
    """From which severity on it is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def set_up_logging(level: Level, *, as_json: bool) -> None:
    """Log to standard error, unless the app has set up the logging by itself already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])
    # On debug the driver logs every command, and with it what jobs carry.
    logging.getLogger("pymongo").setLevel(logging.INFO)


class LineFormatter(logging.Formatter):
    """One line for a person, with the job it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """Append the job's identity, which :attr:`Context.logger` adds to a record."""
        line = super().formatMessage(record)
        job = getattr(record, "job_name", None)
        return line if job is None else f"{line} job={job} id={record.__dict__.get('job_id')}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record carries besides the message is a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(printable(fields), ensure_ascii=False)
