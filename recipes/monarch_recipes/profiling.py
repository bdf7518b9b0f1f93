"""A few steps under torch's profiler, whose trace goes into the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from monarch_recipes.extras import Extras


class Profiler:
    """The torch profiler of one process, for `profile_num_steps` steps from `profile_step` on.

    It writes the trace into the folder `profile` of the run, for chrome://tracing or
    https://ui.perfetto.dev.
    """

    def __init__(self, extras: Extras, checkpoint_dir: Path, name: str) -> None:
        self._first = extras.profile_step
        self._end = self._first + extras.profile_num_steps
        self._file = checkpoint_dir.parent / "profile" / f"{name}.json"
        self._profile: Any = None

    def before(self, step: int) -> None:
        """Call it before each step. It starts the profiler before the first step to record."""
        if self._first and self._profile is None and self._first <= step < self._end:
            self._profile = torch.profiler.profile()
            self._profile.start()

    def after(self, step: int) -> None:
        """Call it after each step. It writes the trace after the last recorded step."""
        if self._profile is not None and step >= self._end - 1:
            profile, self._profile = self._profile, None
            profile.stop()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self._file))
