"""Chooses the acquisition shape of a worker: probes both on its own job names, at start and every half hour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from gangline.jobs.hint import HintChoice, Sample, Shape, cheaper
from gangline.store.errors import StoreError
from gangline.worker.cancellation import heed_cancellation

logger = logging.getLogger("gangline.hint")

SAMPLES = 3
INTERVAL_SECONDS = 30 * 60.0

Probe = Callable[[Shape, int], Awaitable[Sample]]


class HintProber:
    """Holds the choice, and renews it. What it learns stays in the process."""

    def __init__(
        self,
        probe: Probe | None,
        partitions: int,
        rng: Random,
        chosen: Callable[[], None],
        *,
        first: Shape = Shape.BY_NAME,
    ) -> None:
        """``probe`` measures a shape on a partition, and ``None`` means to stay with ``first`` for ever.

        ``chosen`` is called after each new choice.
        """
        self._probe = probe
        self._partitions = partitions
        self._random = rng
        self._chosen = chosen
        self._choice = HintChoice(first)

    @property
    def shape(self) -> Shape:
        """The shape in use."""
        return self._choice.shape

    async def run(self) -> None:
        """Probe now and then every half hour, until cancelled."""
        while self._probe is not None:
            await self.run_once(self._probe)
            heed_cancellation()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def run_once(self, probe: Probe) -> None:
        """Probe once. If that fails the choice stays."""
        try:
            samples = await self._samples(probe)
        except StoreError as error:
            logger.info("the claim shapes could not be probed: %s", error, extra={"event": "probe_failed"})
            return
        before, self._choice = self._choice, self._choice.after(cheaper(samples, self.shape))
        if not before.probed or before.shape is not self.shape:
            self._report(samples)
            self._chosen()

    async def _samples(self, probe: Probe) -> dict[Shape, list[Sample]]:
        samples: dict[Shape, list[Sample]] = {shape: [] for shape in Shape}
        for number in range(SAMPLES):
            partition = self._random.randrange(self._partitions)
            # The second one finds the pages warm: each shape is first in its turn.
            for shape in list(Shape) if number % 2 == 0 else reversed(Shape):
                samples[shape].append(await probe(shape, partition))
        return samples

    def _report(self, samples: dict[Shape, list[Sample]]) -> None:
        examined = {shape.value: [sample.examined for sample in samples[shape]] for shape in Shape}
        logger.info(
            "claims go %s; keys and documents examined: %s",
            self.shape.value,
            examined,
            extra={"event": "hint_chosen", "shape": self.shape.value, "examined": examined},
        )
