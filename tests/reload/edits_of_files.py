"""Definitions, modules and packages that go from one file to another, and new files."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

CASES = [
    Case(
        "moved_all_kinds",
        {
            "~m": """\
import functools, abc, dataclasses, enum
def deco(f):
    @functools.wraps(f)
    def inner(*a): return ('w', f(*a))
    return inner
K = 1
class Base:
    def who(self): return ('base', K)
class A(Base):
    n = 0
    def f(self): return K
    @property
    def p(self): return K
    @classmethod
    def c(cls): return (cls.__name__, K)
    @staticmethod
    def s(): return K
    def who(self): return ('a',) + super().who()
@dataclasses.dataclass
class D:
    x: int = 1
    def g(self): return self.x + K
class E(enum.Enum):
    A = 1
@deco
def wrapped(x): return x + K
def plain(x, y=1): return x + y + K
def stay(): return plain(1), A().f()
""",
            "~u": """\
from ~m import A, plain, D
class Sub(A):
    def f(self): return ('sub', super().f())
def use(): return plain(1), D(2).g()
""",
        },
        """\
import ~m as m, ~u as u, pickle, functools
a, d, s = m.A(), m.D(3), u.Sub(); bf, pl, wr, stay = a.f, m.plain, m.wrapped, m.stay; part = functools.partial(m.plain, 5); data = pickle.dumps([a, d, m.plain, s, m.E.A]); A = m.A; EA = m.E.A
a.n = 4
""",
        [
            Step(
                {
                    "~m": """\
from ~n import A, D, E, wrapped, plain, deco, Base, K
def stay(): return plain(1), A().f()
""",
                    "~n": """\
import functools, abc, dataclasses, enum
def deco(f):
    @functools.wraps(f)
    def inner(*a): return ('W', f(*a))
    return inner
K = 100
class Base:
    def who(self): return ('base', K)
class A(Base):
    n = 0
    def f(self): return K
    @property
    def p(self): return K
    @classmethod
    def c(cls): return (cls.__name__, K)
    @staticmethod
    def s(): return K
    def who(self): return ('a',) + super().who()
@dataclasses.dataclass
class D:
    x: int = 1
    def g(self): return self.x + K
class E(enum.Enum):
    A = 1
@deco
def wrapped(x): return x + K
def plain(x, y=1): return x + y + K
""",
                },
                """\
import ~n as n
assert n.A is m.A is A and n.plain is pl is m.plain, (n.A, A)
assert a.f() == 100 == bf() and a.p == 100 and A.c() == ('A', 100) and A.s() == 100 and a.who() == ('a', 'base', 100) and a.n == 4
assert d.g() == 103 and d == n.D(3) and isinstance(d, n.D)
assert pl(1) == 102 and part() == 106 and stay() == (102, 100) and u.use() == (102, 102)
assert s.f() == ('sub', 100) and isinstance(s, n.A) and issubclass(u.Sub, n.A)
assert wr(1) == ('W', 101) or wr(1) == ('w', 101), wr(1)
assert m.wrapped(1) == ('W', 101) == n.wrapped(1)
assert n.E.A is EA and n.E(1) is EA and type(EA) is n.E
x = pickle.loads(data); assert x[0].f() == 100 and x[2] is pl and x[4] is EA
assert pickle.loads(pickle.dumps([a, d, EA, pl]))[0].f() == 100 and A.__module__ == '~n' and pl.__module__ == '~n'
""",
            ),
            Step(
                {
                    "~n": [
                        ("K = 100", "K = 7"),
                        ("def f(self): return K", "def f(self): return K, 'n'"),
                    ],
                },
                """\
assert a.f() == (7, 'n') == bf() and pl(1) == 9 and m.A().f() == (7, 'n') and m.K == 7
""",
            ),
        ],
    ),
    Case(
        "moved_to_existing",
        {
            "~m": """\
class A:
    def f(self): return H
H = 1
def g(): return H
""",
            "~n": """\
H = 50
def other(): return H
""",
        },
        "import ~m as m, ~n as n; a, g, A = m.A(), m.g, m.A",
        [
            Step(
                {
                    "~m": """\
from ~n import A, g
H = 1
""",
                    "~n": """\
H = 50
def other(): return H
class A:
    def f(self): return H
def g(): return H
""",
                },
                "assert a.f() == 50 and g() == 50 and n.A is A and n.g is g and m.A is A",
            ),
            Step(
                {
                    "~n": [("H = 50", "H = 51")],
                },
                "assert a.f() == 51 and g() == 51 and n.A is A",
            ),
            Step(
                {
                    "~m": """\
class A:
    def f(self): return H
H = 1
def g(): return H
""",
                    "~n": """\
H = 50
def other(): return H
""",
                },
                "assert a.f() == 1 and g() == 1, (a.f(), g()); assert m.A is A",
            ),
        ],
    ),
    Case(
        "moved_file_renamed",
        {
            "~old": """\
class A:
    def f(self): return 1
def g(): return 1
""",
            "~u": """\
from ~old import A, g
def use(): return A().f(), g()
""",
        },
        "import ~old as o, ~u as u; a, g = o.A(), o.g",
        [
            Step(
                {
                    "~old": None,
                    "~new": """\
class A:
    def f(self): return 2
def g(): return 2
""",
                    "~u": """\
from ~new import A, g
def use(): return A().f(), g()
""",
                },
                """\
import ~new as n
assert a.f() == 2 and g() == 2 and isinstance(a, n.A) and u.use() == (2, 2)
""",
            ),
            Step(
                {
                    "~new": """\
class A:
    def f(self): return 3
def g(): return 3
""",
                },
                "assert a.f() == 3 and g() == 3 and u.use() == (3, 3)",
            ),
        ],
    ),
    Case(
        "moved_refused",
        {
            "~m": """\
class A:
    def f(self): return 1
def g(): return 1
""",
        },
        "import ~m as m, sys; a, g, A = m.A(), m.g, m.A",
        [
            Step(
                {
                    "~m": """\
from ~n import A, g
x = 1/0
""",
                    "~n": """\
class A:
    def f(self): return 2
def g(): return 2
""",
                },
                """\
assert a.f() == 1 and m.g is g and g() == 1 and m.A is A and A.__module__ == '~m' and '~n' not in sys.modules
""",
                refused="ZeroDivisionError",
            ),
            Step(
                {
                    "~m": "from ~n import A, g\n",
                },
                "assert a.f() == 2 and g() == 2 and sys.modules['~n'].A is A",
            ),
        ],
    ),
    Case(
        "module_to_package",
        {
            "~m": """\
X = [1]
class A:
    def f(self): return 1
def g(): return A()
""",
            "~u": """\
import ~m
from ~m import g, A
def use(): return g().f()
""",
        },
        "import ~m as m, ~u as u; a = m.A()",
        [
            Step(
                {
                    "~m": None,
                    "~m.__init__": """\
from .a import A
from .b import g
X = [1]
""",
                    "~m.a": """\
class A:
    def f(self): return 2
""",
                    "~m.b": """\
from .a import A
def g(): return A()
""",
                },
                """\
import importlib, sys
mm = importlib.import_module('~m')
assert mm.g().f() == 2 and u.use() == 2, u.use()
import ~m.a
assert ~m.a.A is mm.A
assert isinstance(a, mm.A) and a.f() == 2
""",
            ),
        ],
    ),
    Case(
        "module_to_package_refused",
        {
            "~m": """\
X = [1]
class A:
    def f(self): return 1
""",
        },
        "import ~m as m, sys; a = m.A(); X = m.X",
        [
            Step(
                {
                    "~m": None,
                    "~m.__init__": """\
from .a import A
X = [1]
1/0
""",
                    "~m.a": """\
class A:
    def f(self): return 2
""",
                },
                """\
assert a.f() == 1 and not hasattr(m, '__path__') and '~m.a' not in sys.modules and m.__package__ == '' and m.X is X
""",
                refused="ZeroDivisionError",
            ),
            Step(
                {
                    "~m.__init__": """\
from .a import A
X = [1]
""",
                },
                """\
assert a.f() == 2 and m.X is X and sys.modules['~m'] is m and sys.modules['~m.a'].A is type(a)
""",
            ),
        ],
    ),
    Case(
        "package_to_module_and_back",
        {
            "~m.__init__": """\
from .a import A
from .b import g
X = [1]
""",
            "~m.a": """\
class A:
    def f(self): return 1
""",
            "~m.b": """\
from .a import A
def g(): return A()
""",
            "~u": """\
from ~m import g, A, X
import ~m.a
def use(): return g().f()
""",
        },
        "import ~m as m, ~u as u; a = m.A(); X = m.X; X.append(2); g = m.g",
        [
            Step(
                {
                    "~m.__init__": None,
                    "~m.a": None,
                    "~m.b": None,
                    "~m": """\
X = [1]
class A:
    def f(self): return 2
def g(): return A()
""",
                },
                """\
import ~m as n
assert n is m and a.f() == 2 and u.use() == 2 and m.X is X == [1, 2] and isinstance(g(), type(a)) and m.__file__.endswith('~m.py') and not hasattr(m, '__path__')
""",
            ),
            Step(
                {
                    "~m": None,
                    "~m.__init__": """\
from .sub import A
X = [1]
def g(): return A(), X
""",
                    "~m.sub": """\
class A:
    def f(self): return 3
""",
                },
                """\
import ~m.sub
assert a.f() == 3 and g()[0].f() == 3 and g()[1] is X and ~m.sub.A is type(a) and m.__path__ and m.__package__ == '~m'
""",
            ),
            Step(
                {
                    "~m.sub": [("return 3", "return 4")],
                },
                "assert a.f() == 4 and u.use.__globals__['A'] is type(a)",
            ),
        ],
    ),
    Case(
        "new_folder_of_new_files",
        {
            "~m": "def f(): return 1\n",
        },
        "import ~m as m; f = m.f",
        [
            Step(
                {
                    "~m": """\
from ~losses.ce import loss
def f(): return loss()
""",
                    "~losses.ce": """\
from .base import one
def loss(): return one() + 1
""",
                    "~losses.base": "def one(): return 1\n",
                },
                "assert f() == 2",
            ),
            Step(
                {
                    "~losses.base": [("return 1", "return 5")],
                },
                "assert f() == 6",
            ),
        ],
    ),
    Case(
        "relative_package",
        {
            "~p.__init__": """\
from .core import Trainer, step
from . import util
__version__ = '1'
""",
            "~p.core": """\
from .util import scale
class Trainer:
    def go(self): return scale(1)
def step(): return scale(2)
""",
            "~p.util": """\
K = 3
def scale(x): return x * K
""",
        },
        "import ~p as p; t = p.Trainer(); st = p.step",
        [
            Step(
                {
                    "~p.util": [("K = 3", "K = 4")],
                },
                "assert t.go() == 4 and st() == 8",
            ),
            Step(
                {
                    "~p.util": [
                        (
                            "def scale(x): return x * K",
                            "def scale(x, y=1): return x * K + y\ndef other(): return 7",
                        )
                    ],
                    "~p.core": [
                        ("from .util import scale", "from .util import scale, other"),
                        ("return scale(1)", "return scale(1) + other()"),
                    ],
                },
                "assert t.go() == 12 and p.step() == 9",
            ),
            Step(
                {
                    "~p.util": "from ._impl import scale, other\n",
                    "~p._impl": """\
K = 5
def scale(x, y=1): return x * K + y
def other(): return 8
""",
                },
                "assert t.go() == 14 and st() == 11 and p.util.scale(1) == 6",
            ),
        ],
    ),
    Case(
        "split_module_functions_moved",
        {
            "~m": """\
STATE = {'n': 0}
def loss(x):
    STATE['n'] += 1
    return x
def metric(x): return loss(x) * 2
""",
            "~u": """\
from ~m import loss, metric
def go(): return loss(1), metric(1)
""",
        },
        "import ~m as m, ~u as u; held = m.metric; u.go(); hl = m.loss",
        [
            Step(
                {
                    "~losses": """\
STATE = {'n': 0}
def loss(x):
    STATE['n'] += 1
    return x * 10
""",
                    "~m": """\
from ~losses import loss, STATE
def metric(x): return loss(x) * 3
""",
                },
                "assert u.go() == (10, 30) and held(1) == 30 and hl(1) == 10, hl(1)",
            ),
        ],
    ),
    Case(
        "import_missing_then_ok",
        {
            "~b": "def g(): return 1\n",
        },
        "import ~b as b; g = b.g",
        [
            Step(
                {
                    "~b": """\
from ~nothere import f
def g(): return f()
""",
                },
                "assert g() == 1",
                refused="nothere",
            ),
            Step(
                {
                    "~nothere": "def f(): return 4\n",
                },
                "assert g() == 4",
            ),
        ],
    ),
    Case(
        "new_module_broken",
        {
            "~b": "def g(): return 1\n",
        },
        "import ~b as b, sys; g = b.g",
        [
            Step(
                {
                    "~b": """\
from ~n import f
def g(): return f()
""",
                    "~n": """\
def f(): return 4
1/0
""",
                },
                "assert g() == 1 and '~n' not in sys.modules",
                refused="ZeroDivisionError",
            ),
            Step(
                {
                    "~n": "def f(): return 4\n",
                },
                "assert g() == 4",
            ),
        ],
    ),
]
