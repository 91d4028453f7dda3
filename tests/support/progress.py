"""A progress that is looked at afterwards."""


class Recorded:
    """Notes what it was told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.reached: list[int] = []

    def begin(self, stage: str, total: int) -> None:
        self.stages.append((stage, total))

    def reach(self, done: int) -> None:
        self.reached.append(done)
