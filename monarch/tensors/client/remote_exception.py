"""The error of an operation that failed at a worker, raised when the program asks for its
result."""

from __future__ import annotations

import traceback
from typing import Any

from monarch.tensors.client.tracebacks import frames_of
from monarch.tensors.core.log import Spoiler


class RemoteException(Exception):
    """An operation failed on ``rank``. ``controller_frames`` are where the user issued it."""

    def __init__(
        self,
        worker_error_string: str,
        controller_frames: list[traceback.FrameSummary],
        rank: int,
    ) -> None:
        super().__init__(worker_error_string, controller_frames, rank)
        self.worker_error_string = worker_error_string
        self.controller_frames = controller_frames
        self.rank = rank

    def __str__(self) -> str:
        frames = "".join(traceback.format_list(self.controller_frames))
        return (
            f"A remote function has failed asynchronously on rank {self.rank}.\n"
            "Traceback of where the remote function was issued on controller (most recent call "
            f"last):\n{frames}Error as reported from worker:\n{self.worker_error_string}"
        )


def exception_of(spoiler: Spoiler) -> RemoteException:
    """Return a new exception for a failure.

    A raised exception keeps its frames, and thereby the frames' tensors: so none is used twice.
    """
    spoiler.was_raised = True
    frames: Any = frames_of(spoiler.frames)
    return RemoteException(spoiler.failure.text, frames, spoiler.failure.rank)
