"""Edits of what is computed from classes while a module loads."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

CASES = [
    Case(
        "rows_that_a_call_adds",
        {
            "~m": "T = {}\nT.update(a=1)\nX = T['a']\nL = []\nfor n in (1, 2):\n    L.append(n)\nLAST = L[-1]\nBOX = [T]\nclass Log:\n    def put(self, n): self.n = n\nlog = Log()\nlog.put(1)\nHELD = [log.n]\n"
        },
        "import ~m as m; held = m.HELD",
        [
            Step({"~m": [("a=1", "a=2")]}, "assert m.X == m.T['a'] == 2 and m.LAST == 2"),
            Step({"~m": [("(1, 2)", "(1, 3)")]}, "assert m.LAST == 3 and m.X == 2"),
            Step({"~m": [("put(1)", "put(2)")]}, "assert m.log.n == 2 and m.HELD is held"),
        ],
    ),
    Case(
        "flags_with_another_value",
        {
            "~m": "import enum\nclass F(enum.IntFlag):\n    A = 1\n    B = 2\nclass G(enum.Flag):\n    A = 1\n    B = 2\nV = F.A | F.B\nW = G.A | G.B\nCOUNT = int(V)\n"
        },
        "import ~m as m; F, G = m.F, m.G",
        [
            Step(
                {"~m": [("B = 2", "B = 4")]},
                "assert m.V == 5 == m.COUNT and m.V is m.F.A | m.F.B and isinstance(m.V, F) and m.F is F and m.W is G.A | G.B and m.W.value == 5",
            ),
            Step(
                {"~m": [("A = 1\n", "A = 1\n    C = 2\n"), ("F.A | F.B", "F.A | F.C")]},
                "assert m.V == 3 and type(m.V) is F and [f.name for f in F] == ['A', 'C', 'B'], list(F)",
            ),
        ],
    ),
    Case(
        "protocol_that_asks_for_more",
        {
            "~m": "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass P(Protocol):\n    def f(self): ...\nclass A:\n    def f(self): ...\nV = isinstance(A(), P)\nW = issubclass(A, P)\n"
        },
        "import ~m as m; a = m.A()",
        [
            Step(
                {"~m": [("class A:", "    def g(self): ...\nclass A:")]},
                "assert (m.V, m.W, isinstance(a, m.P)) == (False, False, False)",
            ),
            Step(
                {"~m": [("class A:\n", "class A:\n    def g(self): ...\n")]},
                "assert (m.V, m.W, isinstance(a, m.P)) == (True, True, True)",
            ),
        ],
    ),
    Case(
        "values_with_methods",
        {
            "~m": "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 2\n    def total(self):\n        return self.x + self.y\nclass Name(str):\n    def loud(self):\n        return self + '!'\np = P(1)\nname = Name('n')\nV = p.total()\nW = name.loud()\n"
        },
        "import ~m as m; name, P = m.name, m.P",
        [
            Step(
                {"~m": [("return self.x + self.y", "return self.x * 10 + self.y"), ("'!'", "'?'")]},
                "assert (m.V, m.W) == (12, 'n?') and m.name is name and m.p == (1, 2)",
            ),
            Step(
                {
                    "~m": [
                        ("y: int = 2\n", "y: int = 3\n    z: int = 4\n"),
                        ("+ self.y", "+ self.y + self.z"),
                    ]
                },
                "assert m.p == (1, 3, 4) and m.V == 17 == m.p.total() and type(m.p) is P is m.P",
            ),
        ],
    ),
    Case(
        "loop_over_classes_that_are_named",
        {
            "~m": "made = []\nclass A:\n    name = 'a'\n    def f(self):\n        return 1\nclass B:\n    name = 'b'\nTABLE = {cls.name: cls for cls in (A, B)}\nORDER = []\nfor cls in [A, B]:\n    ORDER.append(cls.name)\n    made.append(cls)\n"
        },
        "import ~m as m; A, made = m.A, m.made",
        [
            Step(
                {"~m": [("return 1", "return 2")]},
                "assert A().f() == 2 and m.made is made and made == [A, m.B]",
            ),
            Step(
                {"~m": [("'a'", "'z'")]},
                "assert m.TABLE == {'z': A, 'b': m.B} and made[:2] == [A, m.B]",
            ),
        ],
    ),
    Case(
        "class_that_is_written_twice",
        {
            "~m": "class L:\n    v = 6\n    w = 1\n    def f(self):\n        return 'first'\nclass L:\n    v = 0\n    def f(self):\n        return 'second'\nV = L.v\n"
        },
        "import ~m as m; L, a = m.L, m.L()",
        [
            Step(
                {
                    "~m": "class L:\n    v = 6\n    w = 1\n    def f(self):\n        return 'first'\nV = L.v\n"
                },
                "assert (m.V, L.v, L.w, a.f()) == (6, 6, 1, 'first') and m.L is L",
            ),
        ],
    ),
]
