"""What an owner tells its processes about a generation, as bytes."""

from __future__ import annotations

import pytest

from monarch.runtime.workspace.reload_plan import FileChange, ReloadPlan


def plan_of(num_files: int, name: str = "model") -> ReloadPlan:
    """A first push of so many files to three hosts."""
    hosts = {
        f"h{host}": [
            FileChange(f"/root/work/layers/{name}{number}.py", f"/root/w/{number:032x}")
            for number in range(num_files)
        ]
        for host in range(3)
    }
    return ReloadPlan(1, "d" * 32, "auto", hosts)


@pytest.mark.parametrize("num_files", [1, 1000])
@pytest.mark.parametrize("name", ["model", "\udcff"])  # and one that is no UTF-8
def test_it_can_be_read_back(num_files: int, name: str) -> None:
    plan = plan_of(num_files, name)
    for raw in (plan.encode(), memoryview(plan.encode())):
        assert ReloadPlan.decode(raw) == plan


def test_a_first_push_is_little_beside_its_contents() -> None:
    """Each proc is told of the files of all hosts, over a link that may be slow."""
    assert len(plan_of(1000).encode()) < 30_000
