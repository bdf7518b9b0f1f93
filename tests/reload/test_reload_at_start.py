"""Functions that only count when a run begins say so when they are edited."""

from __future__ import annotations

import pytest

from monarch_sync.reload import at_start

from .conftest import Project


def test_a_marked_function_counts_from_the_next_start(project: Project) -> None:
    module = project.load("starting", "def build(n=1):\n    return 1\ndef other():\n    return 1\n")
    assert at_start(module.build) is module.build
    report = project.edit("starting", "def build(n=1):\n    return 2\ndef other():\n    return 2\n")
    assert report.at_start == ["starting.build"]
    assert report.warnings == ["starting.build counts from the next start of the run"]
    report = project.edit("starting", "def build(n=2):\n    return 3\ndef other():\n    return 3\n")
    assert report.at_start == ["starting.build"]
    report = project.edit("starting", "def build(n=2):\n    return 3\ndef other():\n    return 4\n")
    assert report.at_start == []


def test_the_making_of_a_module_of_torch(project: Project) -> None:
    pytest.importorskip("torch")
    source = """
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 3)
            def forward(self, x):
                return self.layer(x)
        class Other:
            def __init__(self):
                self.x = 1
        """
    project.load("starting_net", source)
    report = project.edit("starting_net", source.replace("(2, 3)", "(2, 4)"))
    assert report.at_start == ["starting_net.Net.__init__"]
    other = source.replace("(2, 3)", "(2, 4)").replace("self.x = 1", "self.x = 2")
    assert project.edit("starting_net", other).at_start == []


def test_what_cannot_be_marked_is_given_back() -> None:
    assert at_start(len) is len
