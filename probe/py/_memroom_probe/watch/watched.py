"""What the watch of this process keeps, whatever frameworks it trains with."""

from __future__ import annotations

from typing import Any

from . import heap, models, steps


class Watched:
    """The state of the watch, handed to the hooks of each framework."""

    __slots__ = ("builds", "heap", "loop", "tensorflow", "torch")

    def __init__(self) -> None:
        self.loop = steps.Loop()
        self.builds = models.Builds(self.loop)
        self.heap = heap.Looks(self.loop, self.builds)
        self.torch: Any = None  # the hooks of a framework, once it is imported
        self.tensorflow: Any = None


watched = Watched()
