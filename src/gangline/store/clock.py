"""The server's clock, read without asking for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pymongo import monitoring
from pymongo.hello import Hello

logger = logging.getLogger("gangline.clock")

REPORT_SKEW_ABOVE = timedelta(seconds=1)


class ServerClock(monitoring.ServerHeartbeatListener):
    """Tells the server's time, as a lower bound that is off by one answer's way at most.

    Every answer to the driver's own heartbeat (at least one in ten seconds) carries the server's ``localTime``. The
    server's clock shows *at least* that when the answer is here; from then on the monotonic clock carries it. A lower
    bound never runs a job early and never takes a lease before its end, whatever this host's clock shows.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._server: datetime | None = None
        self._at = 0.0
        self._reported = False

    def now(self) -> datetime:
        """Return the server's time; the host's own until the first answer."""
        if self._server is None:
            return datetime.fromtimestamp(self._wall(), UTC)
        return self._server + timedelta(seconds=self._monotonic() - self._at)

    def take(self, server_time: datetime) -> None:
        """Take ``server_time`` from an answer that arrived just now."""
        self._server, self._at = server_time.replace(tzinfo=UTC), self._monotonic()
        self._report_skew()

    @property
    def known(self) -> bool:
        """Whether an answer of the server's was seen."""
        return self._server is not None

    @property
    def skew(self) -> timedelta:
        """How far this host's clock is ahead of the server's; negative when it is behind."""
        return datetime.fromtimestamp(self._wall(), UTC) - self.now()

    def _report_skew(self) -> None:
        if abs(self.skew) > REPORT_SKEW_ABOVE and not self._reported:
            self._reported = True
            logger.warning(
                "this host's clock differs from the server's by %.1f s; the server's is used",
                self.skew.total_seconds(),
                extra={"event": "clock_skew", "skew_seconds": self.skew.total_seconds()},
            )

    # The driver calls these.

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        """Nothing to learn yet."""

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        """Take the time from a primary's or a router's answer."""
        self.take_hello(event.reply)

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """The monotonic clock carries on."""

    def take_hello(self, reply: Hello[dict[str, object]]) -> None:
        """Take the time from ``reply`` if it comes from a server that accepts writes."""
        local_time = reply.document.get("localTime")
        if reply.is_writable and isinstance(local_time, datetime):
            self.take(local_time)
