"""Everything Gangline raises on purpose.

::

    GanglineError
    ├── ConfigurationError       a definition, a setting or an option is wrong: mend the code; nothing was started
    ├── SchedulingError          this job was refused and nothing was stored
    │   ├── InvalidParams        the params do not fit the handler, or would not survive storage
    │   ├── RecordTooLarge       the record exceeds the server's document limit
    │   └── AlreadyScheduled     the unique identifier is taken and ``on_conflict="raise"`` was asked for
    ├── ServerUnsuitable         the server cannot run Gangline: too old, or it lacks a command
    └── LeaseLost                this execution no longer owns its record and must not act for it

    JobTimeout                   recorded as the error of a run that outlived its ``timeout``

A handler steers its own end by raising :class:`Retry` or :class:`Dismiss`; they are no errors and no part of this tree.
"""

from __future__ import annotations

from datetime import datetime

from gangline.jobs.durations import Duration, aware_utc, parse_duration


class GanglineError(Exception):
    """Root of all errors that Gangline raises on purpose."""


class ConfigurationError(GanglineError, ValueError):
    """A definition, a setting or an option is wrong. Mend the code: nothing was started or stored."""

    def __init__(self, setting: str, problem: str, remedy: str) -> None:
        super().__init__(f"{setting}: {problem}. {remedy}")
        self.setting = setting


class SchedulingError(GanglineError):
    """A job was refused; nothing was stored for it."""


class InvalidParams(SchedulingError, ValueError):
    """The params do not fit the handler's parameters, or would not come back from storage as they went in."""


class RecordTooLarge(SchedulingError, ValueError):
    """The record would exceed the server's limit of 16 MiB a document. Pass a reference instead."""


class AlreadyScheduled(SchedulingError):
    """The unique identifier is taken by the waiting or running record ``job_id``."""

    def __init__(self, unique: str, job_id: str) -> None:
        super().__init__(f"a job with the unique identifier {unique!r} exists already: {job_id}")
        self.unique = unique
        self.job_id = job_id


class ServerUnsuitable(GanglineError):
    """The server cannot run Gangline; the message says what it lacks and what to do."""


class LeaseLost(GanglineError):
    """The execution no longer owns its record: another one may run it. Stop acting for it."""


class JobTimeout(Exception):
    """The run outlived the ``timeout`` of its job."""


class Retry(Exception):
    """Raise it in a handler to run the job again, whatever its retry policy says. ``max_tries`` still holds.

    >>> raise Retry(in_="5m")                                   # doctest: +SKIP
    """

    def __init__(self, *, in_: Duration | None = None, at: datetime | None = None) -> None:
        """``in_``: a duration from now. ``at``: an aware instant. Exactly one of them.

        Raises:
            ValueError: both or none were given, or ``at`` has no time zone.
        """
        if (in_ is None) == (at is None):
            raise ValueError("Retry takes exactly one of in_= and at=")
        super().__init__("retry asked for by the handler")
        self.in_ = None if in_ is None else parse_duration(in_)
        self.at = None if at is None else aware_utc(at)


class Dismiss(Exception):
    """Raise it in a handler to end the job for good, without a result and without an error.

    >>> raise Dismiss("the order was cancelled")                # doctest: +SKIP
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)
