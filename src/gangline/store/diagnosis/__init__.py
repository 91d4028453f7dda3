"""The read model behind ``gangline doctor``: what is wrong with a queue, and what helps. Every read is bounded."""

from gangline.store.diagnosis.check import Check, Expected, Status, running_workers
from gangline.store.diagnosis.examine import examine
from gangline.store.diagnosis.queue import Misplacement, misplacement

__all__ = ["Check", "Expected", "Misplacement", "Status", "examine", "misplacement", "running_workers"]
