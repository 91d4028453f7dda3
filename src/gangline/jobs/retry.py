"""When a failed job runs again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from gangline.jobs import settings
from gangline.jobs.durations import Duration
from gangline.jobs.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long a failed job waits before its next try.

    >>> RetryPolicy.exponential(first="2s", jitter=False).delay(tries=3, chance=0.0)
    datetime.timedelta(seconds=8)
    """

    first: timedelta
    factor: float
    maximum: timedelta
    jitter: bool

    @classmethod
    def exponential(
        cls, *, first: Duration = "2s", factor: float = 2, maximum: Duration = "10m", jitter: bool = True
    ) -> Self:
        """Wait ``first`` after the first failure, ``factor`` times longer after each one, never above ``maximum``.

        Raises:
            ConfigurationError: a duration cannot be read, or ``factor`` is no number of 1 or more.
        """
        return cls(
            first=settings.duration("first", first),
            factor=_factor(factor),
            maximum=settings.duration("maximum", maximum),
            jitter=settings.truth("jitter", jitter),
        )

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: bool = False) -> Self:
        """Wait the same ``delay`` after every failure.

        Raises:
            ConfigurationError: ``delay`` cannot be read.
        """
        length = settings.duration("delay", delay)
        return cls.exponential(first=length, factor=1, maximum=length, jitter=jitter)

    def delay(self, *, tries: int, chance: float) -> timedelta:
        """Return the wait after try number ``tries`` (1 is the first); ``chance`` is a random number in [0, 1).

        With jitter the wait lies between half of the full one and the full one, so that jobs that failed together do
        not come back together.
        """
        full = self._full(max(tries, 1))
        return full * (0.5 + chance / 2) if self.jitter else full

    def _full(self, tries: int) -> timedelta:
        try:
            return min(self.first * float(self.factor) ** (tries - 1), self.maximum)
        except OverflowError:  # float or timedelta; a factor of 10 gets there at try 12
            return self.maximum


def _factor(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ConfigurationError("factor", f"{value!r} is no number of 1 or more", "Waits must not shrink")
    return value


DEFAULT_RETRY = RetryPolicy.exponential()
