# ruff: noqa: E501  (programs in one line each)

"""Live closures, lambdas, wrappers and local classes, over several edits in a row.

Each has to run what its source says now, and to say in which line that stands, whatever was edited
in between.
"""

from __future__ import annotations

from .matrix_cases import Case, Step

# `same` compares a held function with one that is made now: results, and lines.
SAME = """
import inspect, linecache
def lines(f):
    linecache.checkcache()
    return [line for *_, line in f.__code__.co_lines()] if hasattr(f.__code__, 'co_lines') else f.__code__.co_firstlineno
def alike(f, g):
    return lines(f) == lines(g) and inspect.getsource(f) == inspect.getsource(g)
"""
_SCHEDULE = """
def make():
    kind = "cosine"
    def factor(step):
        return step / 10
    return factor
"""
_TWO = """
class Config:
    def __init__(self):
        self.a = lambda: "a1"
        self.b = lambda: "b1"
"""
_DECORATOR = """
import functools
def deco(f):
    kind = "plain"
    @functools.wraps(f)
    def wrapper(x):
        return f(x) + 1
    return wrapper
"""
_MANY = """
import functools
def make(n):
    level = 0
    def plain(x):
        return ("plain1", x + n)
    async def waiting(x):
        return ("waiting1", x + n)
    def items(x):
        yield "items1"
        yield x + n
    class Local:
        def method(self, x):
            return ("method1", x + n)
        @property
        def value(self):
            return "value1"
    return {
        "plain": plain,
        "waiting": waiting,
        "items": items,
        "local": Local,
        "partial": functools.partial(lambda y, x: ("partial1", x + y), n),
        "lambdas": [lambda x: ("first1", x), lambda x: ("second1", x)],
    }
"""
_ASK_MANY = """
def seen(made):
    waiting = made["waiting"](1)
    try:
        waiting.send(None)
    except StopIteration as end:
        value = end.value
    return (made["plain"](1), value, list(made["items"](1)), made["instance"].method(1),
        made["instance"].value, made["partial"](1), [f(1) for f in made["lambdas"]])
def made_by(m):
    made = m.make(2)
    made["instance"] = made["local"]()
    return made
def codes(made):
    local = vars(type(made["instance"]))
    return [made["plain"], made["waiting"], made["items"], local["method"], local["value"].fget,
        made["partial"].func, *made["lambdas"]]
def same(made, m):
    fresh = made_by(m)
    assert seen(made) == seen(fresh), (seen(made), seen(fresh))
    assert all(map(alike, codes(made), codes(fresh))), list(map(lines, codes(made)))
"""
_WORDS = ("plain", "waiting", "items", "method", "value", "partial", "first", "second")

CASES = [
    Case(
        "closure_whose_maker_was_edited_before",
        {"~m": _SCHEDULE},
        f"{SAME}\nimport ~m as m\nf = m.make()",
        [
            Step({"~m": [('"cosine"', '"linear"')]}, "assert f(10) == 1 and alike(f, m.make())"),
            Step({"~m": [("/ 10", "/ 20")]}, "assert f(10) == 0.5 and alike(f, m.make())"),
            Step({"~m": [("/ 20", "/ 10")]}, "assert f(10) == 1"),
            Step(
                {"~m": [('"linear"', '"cosine"'), ("def make", "\n\ndef make")]},
                "assert alike(f, m.make())",
            ),
            Step({"~m": [("/ 10", "/ 40")]}, "assert f(10) == 0.25 and alike(f, m.make())"),
        ],
    ),
    Case(
        "two_lambdas_of_one_maker_in_turn",
        {"~m": _TWO},
        f"{SAME}\nimport ~m as m\nc = m.Config()\ndef seen():\n    return c.a(), c.b()",
        [
            Step({"~m": [('"a1"', '"a2"')]}, "assert seen() == ('a2', 'b1')"),
            Step({"~m": [('"b1"', '"b2"')]}, "assert seen() == ('a2', 'b2')"),
            Step({"~m": [('"a2"', '"a3"')]}, "assert seen() == ('a3', 'b2')"),
            Step(
                {"~m": [("self.a =", "x = 1\n        self.a =")]},
                "assert seen() == ('a3', 'b2') and alike(c.b, m.Config().b)",
            ),
            Step({"~m": [('"b2"', '"b1"')]}, "assert seen() == ('a3', 'b1')"),
        ],
    ),
    Case(
        "two_lambdas_on_one_line",
        {"~m": "def make():\n    n = 0\n    return (lambda: 1), (lambda: 2)\n"},
        f"{SAME}\nimport ~m as m, sys\na, b = m.make()\n",
        [
            Step({"~m": [("n = 0", "n = 1")]}, "assert (a(), b()) == (1, 2)"),
            Step({"~m": [("lambda: 2", "lambda: 3")]}, "assert (a(), b()) == (1, 3)"),
            Step({"~m": [("def make", "\ndef make")]}, "assert (a(), b()) == (1, 3)"),
            Step({"~m": [("lambda: 1", "lambda: 4")]}, "assert (a(), b()) == (4, 3)"),
        ],
    ),
    Case(
        "every_kind_of_closure",
        {"~m": _MANY},
        f"{SAME}{_ASK_MANY}\nimport ~m as m\nmade = made_by(m)",
        [
            Step({"~m": [("level = 0", "level = 1")]}, "same(made, m)"),
            *(Step({"~m": [(f"{word}1", f"{word}2")]}, "same(made, m)") for word in _WORDS),
            Step({"~m": [("def make", "# above\n\ndef make")]}, "same(made, m)"),
            Step({"~m": [(f"{word}2", f"{word}1") for word in _WORDS]}, "same(made, m)"),
            Step({"~m": [("    level = 1\n", "")]}, "same(made, m)"),
            Step({"~m": [("plain1", "plain3")]}, "same(made, m)"),
        ],
    ),
    Case(
        "decorator_whose_body_was_edited_before_its_wrapper",
        {"~lib": _DECORATOR, "~m": "from ~lib import deco\n@deco\ndef f(x):\n    return x\n"},
        f"{SAME}\nimport ~m as m, ~lib as lib\ng = lib.deco(abs)\nheld = m.f",
        [
            Step({"~lib": [('"plain"', '"loud"')]}, "assert (g(1), held(1), m.f(1)) == (2, 2, 2)"),
            Step({"~lib": [("+ 1", "+ 2")]}, "assert (g(1), held(1), m.f(1)) == (3, 3, 3)"),
            Step(
                {"~lib": [("def deco", "# one\n# two\ndef deco")]},
                "new = lib.deco(abs)\nassert lines(g) == lines(new) == lines(m.f) == lines(held)",
            ),
            Step({"~lib": [("+ 2", "+ 3")]}, "assert (g(1), held(1), m.f(1)) == (4, 4, 4)"),
        ],
    ),
    Case(
        "wrapper_says_where_it_stands",
        {
            "~lib": "def deco(f):\n    def w():\n        return 1 / 0\n    return w\n",
            "~m": "import ~lib as lib\n@lib.deco\ndef f():\n    pass\nclass A:\n    @lib.deco\n    def m(self):\n        pass\n",
        },
        "import ~m as m, traceback, linecache\na = m.A.m\ndef seen(f):\n    linecache.checkcache()\n    try:\n        f()\n    except ZeroDivisionError as error:\n        last = traceback.extract_tb(error.__traceback__)[-1]\n        return last.lineno, last.line\n",
        [
            Step(
                {"~lib": [("def deco", "# one\n# two\ndef deco")]},
                "for f in (m.f, a):\n    assert seen(f) == (5, 'return 1 / 0') or seen(f) == (5 + 6, 'return 1 / 0'), seen(f)",
            ),
            Step(
                {"~lib": [("# one\n", ""), ("def w", "x = 1\n    def w")]},
                "assert seen(m.f) == seen(a) and seen(a)[1] == 'return 1 / 0', (seen(a), seen(m.f))",
            ),
        ],
    ),
    Case(
        "closure_that_could_not_follow_for_a_while",
        {"~m": "def make(n):\n    m = 5\n    def f(x):\n        return x + n\n    return f\n"},
        f"{SAME}\nimport ~m as m\nf = m.make(1)",
        [
            Step({"~m": [("x + n", "x + n + m")]}, "assert f(1) == 2 and m.make(1)(1) == 7"),
            Step({"~m": [("m = 5", "m = 6\n    k = 1")]}, "assert f(1) == 2"),
            Step(
                {"~m": [("x + n + m", "x + n + 100")]}, "assert f(1) == 102 and alike(f, m.make(1))"
            ),
            Step({"~m": "K = 1\n"}, "assert f(1) == 102"),
            Step(
                {
                    "~m": "K = 1\ndef make(n):\n    def f(x):\n        return x + n + 3\n    return f\n"
                },
                "assert f(1) == 5",
            ),
            Step({"~m": [("+ 3", "+ 4")]}, "assert f(1) == 6 and alike(f, m.make(1))"),
        ],
    ),
    Case(
        "closure_of_a_maker_that_nobody_can_find",
        {
            "~m": "def make():\n    def f():\n        return 1\n    return f\nF = [make()]\ndel make\nX = 1\n"
        },
        "import ~m as m\nf = m.F[0]",
        [
            Step({"~m": [("X = 1", "X = 2")]}, "assert f() == 1"),
            Step(
                {"~m": [("def make", "# a comment\ndef make")]},
                "assert f.__code__.co_firstlineno == 3",
            ),
        ],
    ),
    Case(
        "closures_among_others_that_come_and_go",
        {
            "~m": "def make():\n    def a():\n        return 'a1'\n    def b():\n        return 'b1'\n    return a, b\n"
        },
        f"{SAME}\nimport ~m as m\na, b = m.make()\n",
        [
            Step(
                {"~m": [("    def a", "    def c():\n        return 'c1'\n    def a")]},
                "assert (a(), b()) == ('a1', 'b1') and alike(b, m.make()[1])",
            ),
            Step({"~m": [("'b1'", "'b2'"), ("'c1'", "'c2'")]}, "assert (a(), b()) == ('a1', 'b2')"),
            Step(
                {
                    "~m": [
                        ("    def c():\n        return 'c2'\n", ""),
                        ("def a()", "def z()"),
                        ("a, b", "z, b"),
                    ]
                },
                "assert alike(b, m.make()[1])",
            ),
            Step({"~m": [("'a1'", "'a2'"), ("'b2'", "'b3'")]}, "assert (a(), b()) == ('a2', 'b3')"),
        ],
    ),
    Case(
        "generator_from_a_closure",
        {"~m": "def make():\n    n = 0\n    def f():\n        return [1]\n    return f\n"},
        "import ~m as m\nf = m.make()",
        [
            Step({"~m": [("return [1]", "yield 2")]}, "assert list(f()) == [2]"),
            Step({"~m": [("n = 0", "n = 1")]}, "assert list(f()) == [2]"),
            Step({"~m": [("yield 2", "return [3]")]}, "assert f() == [3]"),
        ],
    ),
    Case(
        "makers_in_blocks",
        {
            "~m": "import sys\nif len(sys.path) > -1:\n    def make():\n        kind = 1\n        def f():\n            return 'f1'\n        return f\nelse:\n    make = None\ntry:\n    class A:\n        def make(self):\n            return lambda: 'g1'\nexcept ImportError:\n    pass\n"
        },
        f"{SAME}\nimport ~m as m\nf, g = m.make(), m.A().make()",
        [
            Step({"~m": [("kind = 1", "kind = 2")]}, "assert (f(), g()) == ('f1', 'g1')"),
            Step({"~m": [("'f1'", "'f2'")]}, "assert f() == 'f2' and alike(f, m.make())"),
            Step({"~m": [("'g1'", "'g2'")]}, "assert g() == 'g2' and alike(g, m.A().make())"),
            Step(
                {"~m": [("import sys", "import sys\n\n")]},
                "assert alike(f, m.make()) and alike(g, m.A().make())",
            ),
            Step({"~m": [("'f2'", "'f3'"), ("'g2'", "'g3'")]}, "assert (f(), g()) == ('f3', 'g3')"),
        ],
    ),
]
