"""Functions that only count when a run begins say so when they are edited."""

from __future__ import annotations

import pytest

import monarch_reload

from .conftest import Project


def test_a_marked_function_counts_from_the_next_start(project: Project) -> None:
    module = project.load("starting", "def build(n=1):\n    return 1\ndef other():\n    return 1\n")
    assert monarch_reload.at_start(module.build) is module.build
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


def test_a_module_of_torch_that_is_made_otherwise_from_now_on(project: Project) -> None:
    pytest.importorskip("torch")
    source = "from torch import nn\nclass Net(nn.Identity):\n    A = 1\n"
    with_init = f"{source}    def __init__(self):\n        super().__init__(2)\n"
    project.load("starting_to", source)
    assert project.edit("starting_to", with_init).at_start == ["starting_to.Net.__init__"]
    assert project.edit("starting_to", with_init.replace("A = 1", "A = 2")).at_start == []
    assert project.edit("starting_to", source).at_start == ["starting_to.Net.__init__"]


def test_what_cannot_be_marked_is_given_back() -> None:
    assert monarch_reload.at_start(len) is len


_HELPED = """
    from monarch_reload import at_start
    WIDTH = 3
    STEPS = 5
    def size():
        return WIDTH
    def layers():
        return [0] * size()
    def scale():
        return 2
    def hooked():
        return 1
    @at_start
    def build():
        HOOKS = [lambda: hooked()]
        return layers(), scale(), STEPS, HOOKS
    def step():
        return scale() + STEPS
    """


def _edited(project: Project, name: str, text: str, *edit: str) -> list[str]:
    module = project.load(name, text)
    assert module.build
    return [
        one.removeprefix(f"{name}.") for one in project.replace(name, (edit[0], edit[1])).at_start
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("return WIDTH", "return WIDTH + 1", ["size"]),
        ("[0] * size()", "[1] * size()", ["layers"]),
        ("WIDTH = 3", "WIDTH = 4", ["WIDTH"]),
        ("return 2", "return 3", []),
        ("STEPS = 5", "STEPS = 6", []),
        ("return 1", "return 2", []),
    ],
)
def test_what_only_the_start_takes_counts_from_there(
    project: Project, old: str, new: str, told: list[str]
) -> None:
    """A step takes `scale` and STEPS, too, and whoever calls the hook may do it in a step."""
    assert _edited(project, f"helped_{abs(hash(old))}", _HELPED, old, new) == told


@pytest.mark.parametrize(
    "more",
    [
        "REGISTRY = {'size': size}",
        "def step_too():\n        return globals()['size']()",
        "def step_too(name, task):\n        return getattr(task, name)()",
        "def step_too(task):\n        return task.size()",
        "def step_too():\n        return layers()",
        "async def step_too():\n        return size()",
        "def step_too(f=size):\n        return f()",
        "size = staticmethod(size)",
        "class Loss:\n        def __init__(self):\n            size()",
        "def step_too(size):\n        return size()",
        "NAME = 'size'",
    ],
)
def test_what_a_step_may_call_is_no_helper_of_the_start(project: Project, more: str) -> None:
    text = f"{_HELPED}{more}\n"
    assert not _edited(project, f"told_{abs(hash(more))}", text, "return WIDTH", "return WIDTH + 1")


def test_helpers_in_other_modules(project: Project) -> None:
    project.load("start_sizes", "def size():\n    return 1\ndef other():\n    return 1\n")
    user = """
        from monarch_reload import at_start
        import torch_like_thing as t
        from start_sizes import size, other
        @at_start
        def build():
            return size(), getattr(t, 'x', 1), other()
        """
    project.write("torch_like_thing", "")
    project.load("start_build", user.replace("import torch_like_thing as t", "t = 0"))
    both = "def size():\n    return 2\ndef other():\n    return 2\n"
    assert project.edit("start_sizes", both).at_start == ["start_sizes.other", "start_sizes.size"]
    project.load("start_step", "from start_sizes import other\ndef step():\n    return other()\n")
    assert project.edit("start_sizes", both.replace("2", "3")).at_start == ["start_sizes.size"]
    project.load("start_all", "from start_sizes import *\ndef step():\n    return size()\n")
    assert project.edit("start_sizes", both).at_start == []


def test_a_module_of_torch_that_a_step_makes_is_none_of_the_start(project: Project) -> None:
    pytest.importorskip("torch")
    net = """
        from torch import nn
        def width():
            return 2
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, width())
        """
    project.load("start_net", net)
    assert project.replace("start_net", ("return 2", "return 3")).at_start == ["start_net.width"]
    project.load("start_loss", "import start_net\ndef loss():\n    return start_net.Net()\n")
    assert project.replace("start_net", ("return 3", "return 4")).at_start == []
