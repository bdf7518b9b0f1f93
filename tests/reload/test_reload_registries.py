"""Containers in which definitions register themselves, wherever they lie."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from monarch_reload import ReloadError
from tests.reload.conftest import Project

HUB = """
class Hub:
    def __init__(self):
        self.table = {}
        self.ordered = []
        self.events = {}
    def register(self, name):
        def add(thing):
            if name in self.table:
                raise KeyError(f"{name} is registered already")
            self.table[name] = thing
            return thing
        return add
    def order(self, rank):
        def add(thing):
            self.ordered.append((rank, thing))
            return thing
        return add
    def on(self, event):
        def add(thing):
            self.events.setdefault(event, []).append(thing)
            return thing
        return add
hub = Hub()
"""


@pytest.fixture
def hub(project: Project) -> Any:
    return project.load("hub_mod", HUB).hub


def test_a_registry_that_takes_no_name_twice(project: Project, hub: Any) -> None:
    module = project.load(
        "net_mod",
        "from hub_mod import hub\nWIDTH = 1\n@hub.register('a')\nclass A:\n    width = WIDTH\n"
        "@hub.register('b')\ndef b():\n    return 1\n",
    )
    a, b = module.A, module.b
    project.replace("net_mod", ("WIDTH = 1", "WIDTH = 2"))
    assert (hub.table, a.width) == ({"a": a, "b": b}, 2)
    assert list(hub.table) == ["a", "b"]
    report = project.replace("net_mod", ("register('b')", "register('bee')"))
    assert hub.table == {"a": a, "bee": b}
    report.undo()
    assert hub.table == {"a": a, "b": b}


def test_a_name_that_another_definition_has_is_refused(project: Project, hub: Any) -> None:
    source = "from hub_mod import hub\n@hub.register('a')\ndef a():\n    return 1\n"
    project.load("net_mod", source)
    before = dict(hub.table)
    with pytest.raises(ReloadError, match="registered already"):
        project.edit("net_mod", source + "@hub.register('a')\ndef c():\n    return 2\n")
    assert hub.table == before


def test_an_aborted_edit_leaves_registries_in_instances_alone(project: Project, hub: Any) -> None:
    source = "from hub_mod import hub\n@hub.on('start')\ndef a():\n    return 1\n"
    module = project.load("net_mod", source)
    more = "@hub.register('new')\n@hub.order(1)\n@hub.on('start')\ndef c():\n    return 2\n"
    with pytest.raises(ReloadError):
        project.edit("net_mod", source + more + "1 / 0\n")
    project.prepare(net_mod=source + more).abort()
    assert (hub.table, hub.ordered, hub.events) == ({}, [], {"start": [module.a]})


def test_an_entry_with_a_priority_is_replaced(project: Project, hub: Any) -> None:
    module = project.load(
        "net_mod",
        "from hub_mod import hub\n@hub.order(2)\ndef a():\n    return 1\n"
        "@hub.order(1)\ndef b():\n    return 2\n",
    )
    a, b = module.a, module.b
    project.replace("net_mod", ("order(2)", "order(0)"))
    assert hub.ordered == [(0, a), (1, b)]


def test_a_decorator_that_is_taken_away_takes_its_entry_along(project: Project) -> None:
    shared = project.load(
        "hub_mod", HUB + "TOOLS = {}\ndef tool(f):\n    TOOLS['f'] = f\n    return f\n"
    )
    module = project.load(
        "net_mod",
        "import hub_mod\nfrom hub_mod import hub, tool\n"
        "@hub_mod.hub.on('start')\ndef a():\n    return 1\n"
        "@hub.on('start')\ndef b():\n    return 2\n@tool\ndef c():\n    return 3\nTABLE = [a, c]\n",
    )
    a, b, c = module.a, module.b, module.c
    report = project.replace(
        "net_mod", ("@hub_mod.hub.on('start')\ndef a", "def a"), ("@tool\ndef c", "def c")
    )
    assert (shared.hub.events, shared.TOOLS, module.TABLE) == ({"start": [b]}, {}, [a, c])
    report.undo()
    assert (shared.hub.events, shared.TOOLS) == ({"start": [a, b]}, {"f": c})


def test_a_handler_of_another_event_leaves_the_first(project: Project, hub: Any) -> None:
    module = project.load(
        "net_mod",
        "from hub_mod import hub\n@hub.on('start')\ndef a():\n    return 1\n"
        "@hub.on('end')\ndef b():\n    return 2\n@hub.on('end')\ndef c():\n    return 3\n",
    )
    a, b, c = module.a, module.b, module.c
    starters = hub.events["start"]
    report = project.replace("net_mod", ("'end')\ndef b", "'start')\ndef b"))
    assert hub.events == {"start": [a, b], "end": [c]}
    assert hub.events["start"] is starters
    report.undo()
    assert hub.events == {"start": [a], "end": [b, c]}
    project.replace("net_mod", ("'end')\ndef c", "'stop')\ndef c"))
    assert hub.events == {"start": [a, b], "end": [], "stop": [c]}


def test_a_class_that_its_base_registered_goes_with_its_definition(project: Project) -> None:
    project.load(
        "base_mod",
        "class Base:\n    known = []\n"
        "    def __init_subclass__(cls):\n        Base.known.append(cls)\n",
    )
    source = "from base_mod import Base\nclass A(Base):\n    pass\n"
    module = project.load("net_mod", source + "class B(A):\n    pass\n")
    project.edit("net_mod", source + "class C(A):\n    pass\n")
    assert sys.modules["base_mod"].Base.known == [module.A, module.C]


def test_what_was_registered_with_an_operator_stays_when_its_body_changes(
    project: Project,
) -> None:
    pytest.importorskip("torch")
    import torch

    module = project.load(
        "operator_mod",
        "import torch\n@torch.library.custom_op('registered_ops::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
        "def backward(ctx, grad):\n    return grad * 2\n"
        "twice.register_autograd(backward)\n",
    )
    twice = module.twice
    project.replace("operator_mod", ("x * 2", "x * 4"), ("grad * 2", "grad * 4"))
    x = torch.ones(1, requires_grad=True)
    y = twice(x)
    y.backward()
    assert (y.item(), x.grad) == (4, torch.tensor([4.0]))


GIVEN_BACK = {"itself": "thing", "nothing": "None", "its_name": "thing.__name__", "the_hub": "self"}


@pytest.mark.parametrize("names", ["abc", "___"], ids=["own_names", "one_name"])
@pytest.mark.parametrize("given_back", GIVEN_BACK)
def test_a_function_that_only_a_registry_holds(
    given_back: str, names: str, project: Project
) -> None:
    head = (
        "class Hub:\n    def __init__(self):\n        self.steps = []\n"
        f"    def step(self, thing):\n        self.steps.append(thing)\n"
        f"        return {GIVEN_BACK[given_back]}\n"
        "    def run(self):\n        return [step() for step in self.steps]\nhub = Hub()\n"
    )
    first, second, third = (
        f"@hub.step\ndef {name}(k={k}):\n    return k\n" for k, name in enumerate(names)
    )
    hub = project.load("step_mod", head + first + second + third).hub
    steps = list(hub.steps)
    narrow = second.replace("return k", "return k * 10")
    project.edit("step_mod", head + first + narrow + third)
    assert (hub.run(), hub.steps) == ([0, 10, 2], steps)
    wide = narrow.replace("k=1", "k=4")
    project.edit("step_mod", head + first + wide + third)
    assert (hub.run(), hub.steps) == ([0, 40, 2], steps)
    project.edit("step_mod", head + first + wide + first.replace("k=0", "k=7") + third)
    assert hub.run() == [0, 40, 2, 7]
    project.edit("step_mod", head + wide + third)
    assert (hub.run(), hub.steps) == ([40, 2], steps[1:])


def test_a_wrapper_that_only_a_registry_holds(project: Project) -> None:
    source = (
        "HANDLERS = []\ndef on(event):\n    def add(function):\n        def inner():\n"
        "            return event + function()\n        HANDLERS.append(inner)\n    return add\n"
    )
    last = "@on('y')\ndef _():\n    return 'b'\n"
    handlers = "from on_mod import on\n@on('x')\ndef _():\n    return 'a'\n" + last
    module = project.load("on_mod", source)
    project.load("handlers_mod", handlers)

    def run() -> list[str]:
        return [handler() for handler in module.HANDLERS]

    project.replace("handlers_mod", ("'a'", "'A'"))
    assert run() == ["xA", "yb"]
    report = project.replace("on_mod", ("event + function()", "event * 2 + function()"))
    assert run() == ["xxA", "yyb"]
    report.undo()
    assert run() == ["xA", "yb"]
    project.edit("handlers_mod", "from on_mod import on\n" + last)
    assert run() == ["yb"]


def test_a_command_of_another_name_leaves_the_first(project: Project) -> None:
    source = (
        "class Command:\n    def __init__(self, run):\n        self.run = run\n"
        "class Group:\n    def __init__(self):\n        self.commands = {}\n"
        "    def command(self, name):\n        def add(run):\n"
        "            self.commands[name] = Command(run)\n            return self.commands[name]\n"
        "        return add\ngroup = Group()\n"
        "@group.command('go')\ndef go():\n    return 1\n"
        "@group.command('stop')\ndef stop():\n    return 2\n"
    )
    group = project.load("cli_mod", source).group
    report = project.replace("cli_mod", ("'stop'", "'halt'"), ("return 2", "return 3"))
    assert {name: one.run() for name, one in group.commands.items()} == {"go": 1, "halt": 3}
    report.undo()
    assert {name: one.run() for name, one in group.commands.items()} == {"go": 1, "stop": 2}
