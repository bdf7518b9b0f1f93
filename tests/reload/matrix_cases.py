"""The questions that a live actor asks of a reload, as data: for one process, and for a mesh.

In the texts `~` stands for a name of the case's own. `before` and `after` run in one namespace,
where `raises(error, function)` says whether it raises.

Each question is asked after a narrow edit, of bodies only, and after a wide one, which changes
top-level code of the same module as well: an import, a constant, a new function above everything
else, so that all lines move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = "import os\nVERSION = 1\n"
WIDE_HEAD = """
import os, json
VERSION = 2

def brand_new():
    return VERSION

"""


@dataclass(frozen=True, eq=False)
class Step:
    """Edits of files, and what must hold then.

    An edit is pairs of old and new text, or the whole new text, or None for a deleted file.
    `refused` is what the refusal says, where the edit must change nothing. `keeps_mtime`: the
    file looks as it did before.
    """

    edits: Mapping[str, Sequence[tuple[str, str]] | str | None]
    after: str
    refused: str = ""
    keeps_mtime: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    files: Mapping[str, str]
    before: str
    steps: Sequence[Step] = field(default_factory=list)

    def texts(self, kind: str) -> dict[str, str]:
        """The files by module name, for a kind of edit: "narrow" or "wide"."""
        return {self.own(name, kind): self.own(text, kind) for name, text in self.files.items()}

    def own(self, text: str, kind: str) -> str:
        return text.replace("~", f"{kind}_{self.name}_")

    def edited(
        self, texts: Mapping[str, str | None], step: Step, kind: str
    ) -> dict[str, str | None]:
        """The files that a step changes, by module name."""
        found: dict[str, str | None] = {}
        for name, edit in step.edits.items():
            key = self.own(name, kind)
            if edit is None or isinstance(edit, str):
                found[key] = None if edit is None else self.own(edit, kind)
                continue
            text = texts[key]
            assert text is not None
            for old, new in edit:
                old, new = self.own(old, kind), self.own(new, kind)
                assert old in text, (self.name, old)
                text = text.replace(old, new)
            if kind == "wide" and HEAD in text and not step.refused:
                text = text.replace(HEAD, WIDE_HEAD)
            found[key] = text
        return found


def raises(error: type[BaseException], function: Callable[[], Any]) -> bool:
    try:
        function()
    except error:
        return True
    return False


def ask(code: str, space: dict[str, Any]) -> None:
    """Run a part of a case in the namespace of the case."""
    space["raises"] = raises
    exec(compile(code, "<case>", "exec"), space)


ACTOR = (
    HEAD
    + """
class Actor:
    def __init__(self, start=0):
        self.count = start

    def step(self):
        self.count += 1
        return "old"

    def doomed(self):
        return "here"


class Child(Actor):
    def step(self):
        return "child of " + super().step()
"""
)
TO_NEW = [('return "old"', 'return "new"')]
DECORATED = (
    HEAD
    + """
import functools

def loud(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            wrapper.calls += 1
            return function(*args) * times
        wrapper.calls = 0
        return wrapper
    return decorate

@loud(2)
def say(x):
    return "old" + x
"""
)
ENUM = (
    HEAD
    + """
import enum

class Color(enum.Enum):
    RED = 1
    GREEN = 2

    def nice(self):
        return "old " + self.name

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

FAVOURITE = Color.GREEN
"""
)

CASES = [
    Case(
        "live_instance_runs_new_code",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor(); live.step()",
        [Step({"~a": TO_NEW}, "assert live.step() == 'new' and live.count == 2")],
    ),
    Case(
        "new_method",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor(5)",
        [
            Step(
                {
                    "~a": [
                        (
                            "    def doomed",
                            "    def extra(self):\n        return self.count\n\n    def doomed",
                        )
                    ]
                },
                "assert live.extra() == 5 and live.doomed() == 'here'",
            )
        ],
    ),
    Case(
        "changed_signature",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor()",
        [
            Step(
                {
                    "~a": [
                        (
                            "def step(self):\n        self.count += 1",
                            "def step(self, by=10, *, sign=1):\n        self.count += by * sign",
                        )
                    ]
                },
                "live.step(); live.step(5, sign=-1); assert live.count == 5",
            )
        ],
    ),
    Case(
        "stored_bound_method",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor(); stored = live.step",
        [Step({"~a": TO_NEW}, "assert stored() == 'new' and live.count == 1")],
    ),
    Case(
        "deleted_method_is_gone",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor()",
        [
            Step(
                {"~a": [('    def doomed(self):\n        return "here"\n', "")]},
                "assert raises(AttributeError, lambda: live.doomed())",
            )
        ],
    ),
    Case(
        "subclass_elsewhere",
        {"~a": ACTOR, "~b": "from ~a import Actor\nclass Far(Actor):\n    pass\n"},
        "import ~a as m, ~b as other; far = other.Far; live = far()",
        [
            Step(
                {"~a": TO_NEW},
                "assert live.step() == 'new' and other.Far is far and issubclass(far, m.Actor)",
            )
        ],
    ),
    Case(
        "super",
        {"~a": ACTOR},
        "import ~a as m; live = m.Child()",
        [
            Step(
                {"~a": [*TO_NEW, ('"child of "', '"heir of "')]},
                "assert live.step() == 'heir of new'",
            )
        ],
    ),
    Case(
        "instance_state_is_kept",
        {"~a": ACTOR + "\nSINGLE = Actor(40)\n"},
        "import ~a as m; live = m.SINGLE; live.step()",
        [
            Step(
                {"~a": TO_NEW},
                "assert m.SINGLE is live and live.count == 41 and live.step() == 'new'",
            )
        ],
    ),
    Case(
        "import_cycle",
        {
            "~left": HEAD
            + "import ~right\ndef left():\n    return 'l1'\n"
            + "def both():\n    return left() + ~right.right()\n",
            "~right": "import ~left\ndef right():\n    return 'r'\n"
            + "def all():\n    return ~left.both()\n",
        },
        "import ~right as m; assert m.all() == 'l1r'",
        [Step({"~left": [("'l1'", "'l2'")]}, "assert m.all() == 'l2r'")],
    ),
    Case(
        "from_import_users",
        {
            "~f": HEAD + "def f():\n    return 1\n",
            "~u": "from ~f import f\nfrom ~f import f as g\ndef use():\n    return f() + g()\n",
        },
        "import ~u as m; kept = m.f; assert m.use() == 2",
        [Step({"~f": [("return 1", "return 21")]}, "assert m.use() == 42 and m.f is kept")],
    ),
    Case(
        "decorated_function",
        {"~d": DECORATED},
        "import ~d as m; held = m.say; held('!')",
        [
            Step(
                {"~d": [('"old" + x', '"new" + x')]},
                "assert held('?') == 'new?new?' and m.say is held and held.calls == 2",
            )
        ],
    ),
    Case(
        "decorator_itself",
        {"~d": DECORATED},
        "import ~d as m; held = m.say",
        [
            Step(
                {"~d": [("function(*args) * times", "function(*args) * times + '.'")]},
                "assert held('?') == 'old?old?.' and m.say is held",
            )
        ],
    ),
    Case(
        "dependents_are_recomputed",
        {
            "~c": HEAD + "C = 1\ndef c_of():\n    return C\n",
            "~u": "import ~c\nfrom ~c import C, c_of\nD = C + 1\nE = ~c.C + 2\nF = c_of() + 3\n"
            "def use():\n    return D, E, F\n",
            "~t": "import ~u as u\nG = u.D * 100\n",
        },
        "import ~u as m, ~t as third; use = m.use; assert use() == (2, 3, 4)",
        [Step({"~c": [("C = 1", "C = 10")]}, "assert use() == (11, 12, 13) and third.G == 1100")],
    ),
    Case(
        "isinstance_holds",
        {"~a": ACTOR},
        "import ~a as m; live, cls = m.Child(), m.Actor",
        [
            Step(
                {"~a": TO_NEW},
                "assert m.Actor is cls and isinstance(live, m.Actor)\n"
                "assert isinstance(m.Child(), cls)",
            )
        ],
    ),
    Case(
        "pickle_of_a_live_instance",
        {"~a": ACTOR},
        "import pickle, ~a as m; live = m.Child(7); data = pickle.dumps(live)",
        [
            Step(
                {"~a": TO_NEW},
                "copy = pickle.loads(pickle.dumps(live)); old = pickle.loads(data)\n"
                "assert type(copy) is type(live) is type(old)\n"
                "assert (copy.count, copy.step()) == (7, 'child of new')\n"
                "assert (old.count, old.step()) == (7, 'child of new')",
            )
        ],
    ),
    Case(
        "pickle_through_an_old_import",
        {
            "~a": ACTOR + "\ndef build():\n    return Actor()\n",
            "~u": "from ~a import Actor, build\n",
        },
        "import pickle, ~u as m; old_class, old_build = m.Actor, m.build",
        [
            Step(
                {"~a": [*TO_NEW, ("return Actor()", "return Actor(3)")]},
                "assert pickle.loads(pickle.dumps(old_class(2))).count == 2\n"
                "assert pickle.loads(pickle.dumps(old_build)) is old_build\n"
                "assert old_build().count == 3",
            )
        ],
    ),
    Case(
        "enum_identity",
        {"~e": ENUM},
        "import pickle, ~e as m; red, low = m.Color.RED, m.Level.LOW",
        [
            Step(
                {"~e": [('"old "', '"new "')]},
                "assert m.Color.RED is red and m.Color(1) is red and m.Color['RED'] is red\n"
                "assert m.Level(1) is low and red.nice() == 'new RED'\n"
                "assert pickle.loads(pickle.dumps(red)) is red\n"
                "assert m.FAVOURITE is m.Color.GREEN",
            )
        ],
    ),
    Case(
        "module_state_is_kept",
        {
            "~s": HEAD
            + "REGISTRY = {}\nCACHE = [1]\ncounter = 0\nweights = object()\n\ndef bump():\n"
            + "    global counter\n    counter += 1\n    REGISTRY[counter] = 'old'\n"
            + "    return counter\n"
        },
        "import ~s as m; m.bump(); m.CACHE.append(2)\nkept = m.REGISTRY, m.CACHE, m.weights",
        [
            Step(
                {"~s": [("'old'", "'new'")]},
                "assert m.bump() == 2\n"
                "assert (m.REGISTRY, m.CACHE, m.weights) == kept and m.REGISTRY is kept[0]\n"
                "assert m.REGISTRY == {1: 'old', 2: 'new'} and m.CACHE == [1, 2]\n"
                "assert m.weights is kept[2]",
            )
        ],
    ),
    Case(
        "syntax_error_in_one_of_two",
        {"~g": HEAD + "def f():\n    return 1\n", "~b": "def g():\n    return 1\n"},
        "import ~g as good, ~b as bad",
        [
            Step(
                {"~g": [("return 1", "return 2")], "~b": [("return 1", "return 2 +")]},
                "assert (good.f(), bad.g()) == (1, 1)",
                refused="b.py:2",
            ),
            Step(
                {"~g": [("return 2", "return 3")], "~b": [("return 2 +", "return 4")]},
                "assert (good.f(), bad.g()) == (3, 4)",
            ),
        ],
    ),
    Case(
        "body_that_raises",
        {"~a": ACTOR},
        "import ~a as m; live = m.Actor(); before = dict(vars(m))",
        [
            Step(
                {"~a": [*TO_NEW, ("class Child", "LIMIT = 1 / 0\n\nclass Child")]},
                "assert vars(m) == before and live.step() == 'old'",
                refused="ZeroDivisionError",
            ),
            Step({"~a": [("LIMIT = 1 / 0\n", "LIMIT = 1\n")]}, "assert live.step() == 'new'"),
        ],
    ),
    Case(
        "same_size_and_same_mtime",
        {"~a": HEAD + "def f():\n    return 1\n"},
        "import ~a as m; assert m.f() == 1",
        [
            Step({"~a": [("return 1", "return 2")]}, "assert m.f() == 2", keeps_mtime=True),
            Step({"~a": [("return 2", "return 3")]}, "assert m.f() == 3", keeps_mtime=True),
        ],
    ),
]

COMPILED = Case(
    "compiled_callers_do_not_go_stale",
    {
        "~a": HEAD + "SCALE = 2\ndef inner(x):\n    return x + SCALE\n",
        "~u": "import torch\nfrom ~a import inner\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return inner(x) * 10\n"
        "def outer(x):\n    return inner(x)\n",
    },
    "import torch, ~a as m, ~u as user\n"
    "caller = torch.compile(user.outer, backend='eager')\n"
    "net = torch.compile(user.Net(), backend='eager')\n"
    "x = torch.ones(2)\n"
    "assert caller(x).tolist() == [3, 3] and net(x).tolist() == [30, 30]",
    [
        Step(
            {"~a": [("x + SCALE", "x - SCALE")]},
            "assert caller(x).tolist() == [-1, -1], caller(x)\n"
            "assert net(x).tolist() == [-10, -10], net(x)",
        ),
        Step({"~a": [("SCALE = 2", "SCALE = 5")]}, "assert caller(x).tolist() == [-4, -4]"),
    ],
)
