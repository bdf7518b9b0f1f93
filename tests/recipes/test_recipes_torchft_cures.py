"""The cures of TorchFT, by what it has: on a fake of the process groups of 0.3, too."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torchft") is None:
    pytest.skip("torchft is not installed", allow_module_level=True)
import torch
from torchft import ProcessGroupGloo

from monarch.errors import JobError
from monarch_recipes.replicas.torchft_cures import CarefulManager, check_parts


class ReconfiguredGroup:
    """As TorchFT 0.3 has one on a torch that can reconfigure: torch's own group, which has no
    `configure`."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def set_rank_info(self, rank: int, world_size: int) -> None: ...
    def get_reconfigure_handle(self) -> bytes:
        return b""

    def reconfigure(self, options: object) -> None: ...
    def getBackendName(self) -> str:
        return "gloo"

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        def wait() -> None:
            if self.fails:
                raise RuntimeError("a peer is gone")
            for tensor in tensors:
                tensor.mul_(3)  # Two others have the same.

        return SimpleNamespace(wait=wait)


def manager(group: Any) -> CarefulManager:
    """One that takes part in a quorum of three, and has met nobody."""
    made: Any = object.__new__(CarefulManager)
    made._pg = group
    made.reported = []
    made.errored = lambda: None
    made.is_participating = lambda: True
    made.num_participants = lambda: 3
    made.report_error = made.reported.append
    return made


def test_a_group_that_is_reconfigured_averages_as_one_that_is_configured() -> None:
    tensor = torch.tensor([1.0, 2.0])
    manager(ReconfiguredGroup()).begin_average(tensor)()
    assert tensor.tolist() == [1.0, 2.0]


def test_a_death_during_the_average_is_reported_and_raises_nothing() -> None:
    made: Any = manager(ReconfiguredGroup(fails=True))
    made.begin_average(torch.ones(1))()
    assert [str(error) for error in made.reported] == ["a peer is gone"]


@pytest.mark.parametrize("group", [ReconfiguredGroup(), ProcessGroupGloo()])
def test_gloo_is_told_by_its_name_whoever_made_the_group(group: Any) -> None:
    assert manager(group)._goes_by_host


def test_a_part_that_a_cure_changes_may_not_be_missing_unseen() -> None:
    with pytest.raises(JobError, match=r"torchft 0\.\d.* has no gone, .*pip install 'torchft>=0.2"):
        check_parts([(SimpleNamespace(here=1), "here"), (SimpleNamespace(), "gone")])
