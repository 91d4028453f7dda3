"""How long to wait after an error, longer each time."""

from __future__ import annotations

from random import Random

from gangline.jobs.retry import RetryPolicy

_POLICY = RetryPolicy.exponential(first="100ms", factor=2, maximum="5s", jitter=True)


class Backoff:
    """Waits of 0.1 s, doubled up to 5 s, with jitter, so that workers do not come back together."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._errors = 0

    @property
    def fresh(self) -> bool:
        """Whether no error has been met since the last success."""
        return self._errors == 0

    def next(self) -> float:
        """Note one more error and return the seconds to wait."""
        self._errors += 1
        return _POLICY.delay(tries=self._errors, chance=self._random.random()).total_seconds()

    def reset(self) -> None:
        """Note a success."""
        self._errors = 0
