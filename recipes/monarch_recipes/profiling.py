"""A few steps under torch's profiler, whose trace goes into the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from monarch_recipes.extras import Extras


class Profiler:
    """The profiler of one process, by the keys `profile_step` and `profile_num_steps`.

    The trace is for chrome://tracing or https://ui.perfetto.dev.
    """

    def __init__(self, extras: Extras, checkpoint_dir: Path, name: str) -> None:
        self._first = extras.profile_step
        self._end = self._first + extras.profile_num_steps
        self._file = checkpoint_dir.parent / "profile" / f"{name}.json"
        self._profile: Any = None

    def before(self, step: int) -> None:
        """A step is about to be made."""
        if self._first and self._profile is None and self._first <= step < self._end:
            self._profile = torch.profiler.profile()
            self._profile.start()

    def after(self, step: int) -> None:
        """The step was made. The trace is written after the last profiled one."""
        if self._profile is not None and step >= self._end - 1:
            profile, self._profile = self._profile, None
            profile.stop()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self._file))
