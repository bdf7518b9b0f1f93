"""The plainest way to show a run: lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

__all__ = ["LineDisplay"]


class LineDisplay:
    """Writes one line for every message, and for the metrics of every ``log_every``-th step."""

    def __init__(self, stream: TextIO, log_every: int = 10) -> None:
        self.stream = stream
        self.log_every = log_every

    def message(self, text: str) -> None:
        """Write ``text``."""
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def phase(self, text: str) -> None:
        """Is for who looks on."""

    def saved(self, step: int) -> None:
        """Write which step."""
        self.message(f"saved step {step}")

    def alarm(self, text: str) -> None:
        """Write ``text``."""
        self.message(text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """Write ``values`` if it is their turn."""
        if step % self.log_every == 0 or step == num_steps:
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.message(f"step {step}/{num_steps}  {numbers}")
