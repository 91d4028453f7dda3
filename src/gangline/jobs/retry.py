"""When a failed job runs again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from gangline.jobs.durations import Duration, parse_duration


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
            ValueError: a duration cannot be read, or ``factor`` is below 1.
        """
        if not factor >= 1:
            raise ValueError(f"factor: {factor!r} is below 1, so that waits would shrink; use 1 or more")
        return cls(first=parse_duration(first), factor=factor, maximum=parse_duration(maximum), jitter=jitter)

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: bool = False) -> Self:
        """Wait the same ``delay`` after every failure."""
        return cls.exponential(first=delay, factor=1, maximum=delay, jitter=jitter)

    def delay(self, *, tries: int, chance: float) -> timedelta:
        """Return the wait after try number ``tries`` (1 is the first); ``chance`` is a random number in [0, 1).

        With jitter the wait lies between half of the full one and the full one, so that jobs that failed together do
        not come back together.
        """
        full = self._full(max(tries, 1))
        return full * (0.5 + chance / 2) if self.jitter else full

    def _full(self, tries: int) -> timedelta:
        try:
            return min(self.first * self.factor ** (tries - 1), self.maximum)
        except OverflowError:  # float or timedelta; a factor of 10 gets there at try 12
            return self.maximum


DEFAULT_RETRY = RetryPolicy.exponential()
