"""Edits by somebody who wants to find the reloader wrong: small programs, one question each."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

CLASSES = [
    Case(
        "enum_methods_and_aliases",
        {
            "~m": "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\n    def up(self):\n        return self.value\n    @property\n    def label(self):\n        return 'old'\n"
        },
        "import ~m as m, pickle; E, a = m.E, m.E.A; data = pickle.dumps(a); d = {a: 1}",
        [
            Step(
                {"~m": [("B = 2\n", "B = 2\n    ALIAS = 1\n    C = 3\n"), ("'old'", "'new'")]},
                "assert m.E is E and E.A is a and E.ALIAS is a and a.label == 'new' and E(3) is E.C; assert pickle.loads(data) is a and d[m.E.A] == 1; assert list(E) == [E.A, E.B, E.C]",
            ),
            Step(
                {"~m": [("    B = 2\n", ""), ("self.value", "self.value + 1")]},
                "assert not hasattr(m.E, 'B') and raises(ValueError, lambda: m.E(2)) and a.up() == 2 and 'B' not in E.__members__",
            ),
        ],
    ),
    Case(
        "enum_with_init_and_tuple_values",
        {
            "~m": "import enum\nclass P(enum.Enum):\n    X = (1, 2)\n    Y = (3, 4)\n    def __init__(self, m, r):\n        self.m, self.r = m, r\n    def f(self):\n        return self.m\n"
        },
        "import ~m as m; x = m.P.X",
        [
            Step({"~m": [("return self.m", "return self.r")]}, "assert x is m.P.X and x.f() == 2"),
            Step(
                {"~m": [("(1, 2)", "(1, 9)")]},
                "assert m.P.X is x and x.value == (1, 9) and x.r == 9 and x.f() == 9, (x.value, x.r)",
            ),
        ],
    ),
    Case(
        "dataclass_slots_body",
        {
            "~m": "import dataclasses\n@dataclasses.dataclass(slots=True, frozen=True)\nclass P:\n    x: int = 1\n    def f(self):\n        return self.x\n    @property\n    def twice(self):\n        return 2 * self.x\n"
        },
        "import ~m as m, copy, pickle; p = m.P(3); f = p.f; P = m.P",
        [
            Step(
                {"~m": [("return self.x", "return -self.x"), ("2 * ", "3 * ")]},
                "assert m.P is P and isinstance(p, m.P) and f() == p.f() == -3 and p.twice == 9 and m.P(3) == p and hash(p) == hash(m.P(3)); assert pickle.loads(pickle.dumps(p)) == p == copy.copy(p)",
            )
        ],
    ),
    Case(
        "dataclass_replace_match_args_and_field_order",
        {
            "~m": "from dataclasses import dataclass, field, replace, fields\n@dataclass(kw_only=True, order=True)\nclass C:\n    a: int = 1\n    tags: list = field(default_factory=list)\n    def key(self):\n        return self.a\ndef made(c):\n    return replace(c, a=5).key()\n"
        },
        "import ~m as m; c = m.C(a=2); c.tags.append(1)",
        [
            Step(
                {
                    "~m": [
                        ("    tags", "    b: int = 7\n    tags"),
                        ("return self.a", "return self.a + self.b"),
                    ]
                },
                "assert m.made(c) == 12 and c.tags == [1] and [f.name for f in m.fields(m.C)] == ['a', 'b', 'tags'] and m.C(b=1) < m.C(b=2)",
            )
        ],
    ),
    Case(
        "property_chain_by_other_property",
        {
            "~m": "class A:\n    def __init__(self):\n        self._x = 1\n    @property\n    def x(self):\n        return self._x\n    @x.setter\n    def x(self, v):\n        self._x = v\n    y = x\n    z = property(lambda self: self.x + 1)\n"
        },
        "import ~m as m; a = m.A()",
        [
            Step(
                {"~m": [("return self._x", "return self._x * 10")]},
                "assert (a.x, a.y, a.z) == (10, 10, 11)",
            ),
            Step(
                {"~m": [("self._x = v", "self._x = -v")]},
                "a.y = 3; assert (a.x, a.y) == (-30, -30)",
            ),
            Step({"~m": [("self.x + 1", "self.x + 2")]}, "assert a.z == -28"),
        ],
    ),
    Case(
        "cached_property_is_computed_again_for_new_code_only",
        {
            "~m": "import functools\nclass A:\n    n = 0\n    @functools.cached_property\n    def big(self):\n        A.n += 1\n        return [1]\n"
        },
        "import ~m as m; a, b = m.A(), m.A(); kept = a.big",
        [
            Step(
                {"~m": [("[1]", "[2]")]},
                "assert m.A.n == 1 and a.big is kept and b.big == [2] and m.A.n == 2",
            )
        ],
    ),
    Case(
        "descriptor_with_state_by_instance",
        {
            "~m": "import weakref\nclass Field:\n    def __init__(self, default):\n        self.default = default\n        self.values = weakref.WeakKeyDictionary()\n    def __set_name__(self, owner, name):\n        self.name = name\n    def __get__(self, obj, owner=None):\n        return self if obj is None else self.values.get(obj, self.default)\n    def __set__(self, obj, value):\n        self.values[obj] = value\nclass A:\n    size = Field(1)\n    def f(self):\n        return self.size\n"
        },
        "import ~m as m; a, b = m.A(), m.A(); a.size = 5; field = m.A.size",
        [
            Step(
                {"~m": [("return self.size", "return self.size + 1")]},
                "assert a.f() == 6 and m.A.size is field",
            ),
            Step(
                {"~m": [("self.values.get(obj", "1 + self.values.get(obj")]},
                "assert a.f() == 7 and b.size == 2",
            ),
            Step(
                {"~m": [("    def f", "    other = Field(4)\n    def f")]},
                "assert a.size == 6 and m.A.size is field and a.other == 5 and m.A.other.name == 'other'",
            ),
        ],
    ),
    Case(
        "metaclass_methods_and_prepare",
        {
            "~m": "class Meta(type):\n    @classmethod\n    def __prepare__(mcs, name, bases):\n        return {'given': 1}\n    def __call__(cls, *a):\n        made = super().__call__(*a)\n        made.tag = 'old'\n        return made\n    @property\n    def title(cls):\n        return cls.__name__.lower()\n    def __len__(cls):\n        return 1\nclass A(metaclass=Meta):\n    def f(self):\n        return 1\n"
        },
        "import ~m as m; a = m.A(); A = m.A",
        [
            Step(
                {
                    "~m": [
                        ("'old'", "'new'"),
                        (".lower()", ".upper()"),
                        ("return 1\nclass", "return 2\nclass"),
                    ]
                },
                "assert m.A is A and A().tag == 'new' and a.tag == 'old' and A.title == 'A' and len(A) == 2 and A.given == 1",
            ),
            Step(
                {"~m": [("{'given': 1}", "{'given': 2}"), ("    def f", "    x = 1\n    def f")]},
                "assert m.A is A and A.x == 1 and A.given == 2, A.given",
            ),
        ],
    ),
    Case(
        "init_subclass_counts_once",
        {
            "~m": "class Base:\n    seen = []\n    count = 0\n    def __init_subclass__(cls, /, tag='', **kw):\n        super().__init_subclass__(**kw)\n        Base.seen.append((cls.__name__, tag))\n        Base.count += 1\n",
            "~n": "from ~m import Base\nclass A(Base, tag='x'):\n    def f(self):\n        return 1\n",
        },
        "import ~m as m, ~n as n; a = n.A()",
        [
            Step(
                {"~n": [("return 1", "return 2")]},
                "assert a.f() == 2 and m.Base.seen == [('A', 'x')] and m.Base.count == 1",
            ),
            Step(
                {"~n": [("tag='x'", "tag='y'")]},
                "assert a.f() == 2 and m.Base.seen[-1] == ('A', 'y')",
            ),
        ],
    ),
    Case(
        "generic_alias_bounds_and_subscripted_bases",
        {
            "~m": "from typing import Generic, TypeVar\nT = TypeVar('T')\nK = TypeVar('K', bound='Base')\nclass Base:\n    pass\nclass Box(Generic[T]):\n    def __init__(self, item: T):\n        self.item = item\n    def get(self) -> T:\n        return self.item\nclass IntBox(Box[int]):\n    def get(self):\n        return super().get() + 1\nALIAS = Box[int]\n"
        },
        "import ~m as m, typing; b, i = m.Box('a'), m.IntBox(1); alias, T = m.ALIAS, m.T",
        [
            Step(
                {"~m": [("return self.item", "return self.item * 2")]},
                "assert b.get() == 'aa' and i.get() == 3 and alias('x').get() == 'xx' and m.T is T and typing.get_args(alias) == (int,)",
            ),
            Step(
                {"~m": [("class IntBox(Box[int])", "class IntBox(Box[str])")]},
                "assert i.get() == 3 and isinstance(i, m.Box) and m.IntBox.__orig_bases__ == (m.Box[str],)",
            ),
            Step(
                {"~m": [("class Box(Generic[T])", "class Box(Base, Generic[T])")]},
                "assert not isinstance(b, m.Base) and b.get() == 'aa' and alias('x').get() == 'xx'",
                refused="another memory layout",
            ),
        ],
    ),
    Case(
        "named_tuple_methods_and_defaults",
        {
            "~m": "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 2\n    def norm(self):\n        return self.x + self.y\n    @property\n    def neg(self):\n        return -self.x\n",
            "~u": "from ~m import P\nORIGIN = P(1)\ndef use(p):\n    x, y = p\n    return p.norm()\n",
        },
        "import ~m as m, ~u as u; p = m.P(4)",
        [
            Step(
                {"~m": [("self.x + self.y", "self.x * self.y"), ("-self.x", "-2 * self.x")]},
                "assert (p.norm(), p.neg, u.use(p), u.ORIGIN.norm()) == (8, -8, 8, 2)",
            ),
            Step(
                {"~m": [("y: int = 2", "y: int = 5")]},
                "assert m.P(1).y == 5 and p.norm() == 8 and isinstance(p, m.P)",
            ),
        ],
    ),
    Case(
        "typed_dict_and_literal",
        {
            "~m": "from typing import TypedDict, Literal, get_type_hints\nclass T(TypedDict, total=False):\n    a: int\nMODE = Literal['x']\ndef keys():\n    return sorted(get_type_hints(T))\n"
        },
        "import ~m as m; t = m.T(a=1)",
        [
            Step(
                {"~m": [("a: int", "a: int\n    b: str"), ("['x']", "['x', 'y']")]},
                "assert m.keys() == ['a', 'b'] and t == {'a': 1} and m.MODE.__args__ == ('x', 'y') and m.T.__optional_keys__ == {'a', 'b'}",
            )
        ],
    ),
    Case(
        "protocol_isinstance_follows_members",
        {
            "~m": "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass Runs(Protocol):\n    def run(self): ...\nclass A:\n    def run(self):\n        return 1\ndef ok(x):\n    return isinstance(x, Runs)\n"
        },
        "import ~m as m; a = m.A(); assert m.ok(a)",
        [
            Step(
                {
                    "~m": [
                        (
                            "    def run(self): ...\n",
                            "    def run(self): ...\n    def stop(self): ...\n",
                        )
                    ]
                },
                "assert not m.ok(a)",
            ),
            Step(
                {
                    "~m": [
                        (
                            "        return 1\n",
                            "        return 1\n    def stop(self):\n        return 2\n",
                        )
                    ]
                },
                "assert m.ok(a)",
            ),
        ],
    ),
    Case(
        "abc_virtual_subclasses",
        {
            "~m": "import abc\nclass Shape(abc.ABC):\n    @abc.abstractmethod\n    def area(self): ...\n    @classmethod\n    def __subclasshook__(cls, other):\n        return True if hasattr(other, 'is_shape') else NotImplemented\nclass Foreign:\n    pass\nclass Hooked:\n    is_shape = True\nShape.register(Foreign)\n"
        },
        "import ~m as m; f, h = m.Foreign(), m.Hooked(); S = m.Shape; assert isinstance(f, S) and isinstance(h, S)",
        [
            Step(
                {"~m": [("'is_shape'", "'is_form'")]},
                "assert m.Shape is S and not isinstance(h, S) and isinstance(f, S)",
            ),
            Step(
                {"~m": [("class Foreign:\n    pass", "class Foreign:\n    n = 1")]},
                "assert isinstance(f, S) and isinstance(m.Foreign(), S) and f.n == 1",
            ),
        ],
    ),
    Case(
        "bases_reordered_with_cooperative_super",
        {
            "~m": "class Root:\n    def go(self):\n        return ['root']\nclass A(Root):\n    def go(self):\n        return ['a', *super().go()]\nclass B(Root):\n    def go(self):\n        return ['b', *super().go()]\nclass C(A, B):\n    def go(self):\n        return ['c', *super().go()]\nclass D(C):\n    pass\n"
        },
        "import ~m as m; c, d = m.C(), m.D(); go = d.go",
        [
            Step(
                {"~m": [("class C(A, B)", "class C(B, A)")]},
                "assert c.go() == go() == ['c', 'b', 'a', 'root'] and m.D.__mro__[1] is m.C",
            ),
            Step(
                {"~m": [("class C(B, A)", "class C(B)")]},
                "assert c.go() == ['c', 'b', 'root'] and not isinstance(d, m.A)",
            ),
            Step(
                {"~m": [("class B(Root)", "class B(A)")]},
                "assert go() == ['c', 'b', 'a', 'root'] and isinstance(d, m.A)",
            ),
        ],
    ),
    Case(
        "super_in_decorated_methods",
        {
            "~m": "import functools\ndef logged(f):\n    @functools.wraps(f)\n    def inner(self, *a):\n        return ('log', f(self, *a))\n    return inner\nclass Base:\n    def f(self):\n        return 'base'\n    @classmethod\n    def c(cls):\n        return 'base c'\nclass A(Base):\n    @logged\n    def f(self):\n        return super().f() + ' old'\n    @classmethod\n    def c(cls):\n        return super().c() + ' old'\n    @logged\n    @logged\n    def twice(self):\n        return __class__.__name__\n"
        },
        "import ~m as m; a = m.A(); f, c = a.f, m.A.c",
        [
            Step(
                {"~m": [("' old'", "' new'")]},
                "assert a.f() == f() == ('log', 'base new') and c() == a.c() == 'base c new'",
            ),
            Step(
                {"~m": [("('log', f", "('LOG', f"), ("'base'", "'BASE'")]},
                "assert f() == a.f() == ('LOG', 'BASE new') and a.twice() == ('LOG', ('LOG', 'A'))",
            ),
            Step(
                {"~m": [("    @logged\n    def f", "    def f")]},
                "assert a.f() == 'BASE new' == m.A().f()",
            ),
        ],
    ),
    Case(
        "class_attribute_counters",
        {
            "~m": "class A:\n    made = 0\n    names = []\n    limits = {'a': 1}\n    def __init__(self):\n        A.made += 1\n        type(self).names.append(self.made)\n    def f(self):\n        return 1\n"
        },
        "import ~m as m; a, b = m.A(), m.A(); names = m.A.names",
        [
            Step(
                {"~m": [("return 1", "return 2")]},
                "assert m.A.made == 2 and names is m.A.names == [1, 2]",
            ),
            Step(
                {"~m": [("{'a': 1}", "{'a': 2}")]},
                "assert m.A.made == 2 and m.A.names is names and m.A.limits == {'a': 2}",
            ),
            Step(
                {"~m": [("made = 0", "made = 10")]},
                "assert m.A.made == 10 and m.A().made == 11 and m.A.names is names",
            ),
        ],
    ),
    Case(
        "nested_classes_three_deep",
        {
            "~m": "class A:\n    class B:\n        class C:\n            def f(self):\n                return 1\n        def g(self):\n            return self.C().f()\n    class Err(Exception):\n        pass\n    def fail(self):\n        raise self.Err('x')\n"
        },
        "import ~m as m, pickle; c, b = m.A.B.C(), m.A.B(); C, Err = m.A.B.C, m.A.Err; data = pickle.dumps(c)",
        [
            Step(
                {"~m": [("return 1", "return 2")]},
                "assert c.f() == b.g() == 2 and m.A.B.C is C and type(pickle.loads(data)) is C",
            ),
            Step(
                {
                    "~m": [
                        ("            def f", "            n = 5\n            def f"),
                        ("return 2", "return self.n"),
                    ]
                },
                "assert c.f() == b.g() == 5 and m.A.B.C is C and m.A.Err is Err",
            ),
            Step(
                {"~m": [("class Err(Exception)", "class Err(KeyError)")]},
                "assert not issubclass(m.A.Err, KeyError) and raises(Err, m.A().fail)",
                refused="A.Err: base classes with another memory layout",
            ),
        ],
    ),
    Case(
        "weak_references_and_finalizers",
        {
            "~m": "import weakref\nclass A:\n    def f(self):\n        return 1\nLIVE = weakref.WeakSet()\nBY = weakref.WeakValueDictionary()\ndef add(a):\n    LIVE.add(a)\n    BY['a'] = a\n    return a\n"
        },
        "import ~m as m, weakref, gc; a = m.add(m.A()); r, w, k = weakref.ref(a), weakref.WeakMethod(a.f), weakref.ref(m.A)",
        [
            Step(
                {"~m": [("return 1", "return 2"), ("LIVE.add(a)\n", "LIVE.add(a); m = 1\n")]},
                "assert r() is a and w()() == 2 and k() is m.A and list(m.LIVE) == [a] and m.BY['a'] is a",
            ),
            Step(
                {"~m": [("class A:\n", "class A:\n    x = 1\n")]},
                "gc.collect(); assert r() is a and w()() == 2 and k() is m.A and list(m.LIVE) == [a] and a.x == 1",
            ),
        ],
    ),
    Case(
        "pickles_over_renames_and_reduce",
        {
            "~m": "class A:\n    def __init__(self, n):\n        self.n = n\n    def __reduce__(self):\n        return (make, (self.n,))\ndef make(n):\n    return A(n)\nclass Plain:\n    def __setstate__(self, state):\n        self.__dict__.update(state, by='old')\n    def __getstate__(self):\n        return {'k': 1}\n"
        },
        "import ~m as m, pickle; a = m.A(3); data = pickle.dumps([a, m.Plain(), m.make, m.A])",
        [
            Step(
                {"~m": [("return A(n)", "return A(n * 10)"), ("by='old'", "by='new'")]},
                "x, p, make, A = pickle.loads(data); assert x.n == 30 and p.by == 'new' and make is m.make and A is m.A and type(x) is type(a)",
            ),
            Step(
                {"~m": [("class A:\n", "class A:\n    z = 1\n"), ("{'k': 1}", "{'k': 2}")]},
                "x, p, make, A = pickle.loads(data); assert x.z == 1 and type(x) is type(a) and pickle.loads(pickle.dumps(p)).k == 2",
            ),
        ],
    ),
    Case(
        "class_that_becomes_callable_iterable_awaitable",
        {"~m": "class A:\n    def __init__(self):\n        self.n = 2\n"},
        "import ~m as m, asyncio; a = m.A()",
        [
            Step(
                {
                    "~m": [
                        (
                            "self.n = 2\n",
                            "self.n = 2\n    def __call__(self, x):\n        return x + self.n\n    def __iter__(self):\n        yield from range(self.n)\n    def __len__(self):\n        return self.n\n    def __contains__(self, x):\n        return x == 9\n    def __await__(self):\n        yield from ()\n        return self.n\n    def __eq__(self, o):\n        return True\n    __hash__ = None\n",
                        )
                    ]
                },
                "async def w():\n    return await a\nassert a(1) == 3 and list(a) == [0, 1] and len(a) == 2 and 9 in a and asyncio.run(w()) == 2 and a == 4 and raises(TypeError, lambda: hash(a))",
            ),
            Step(
                {"~m": "class A:\n    def __init__(self):\n        self.n = 2\n"},
                "assert not callable(a) and raises(TypeError, lambda: list(a)) and raises(TypeError, lambda: len(a)) and a != 4 and isinstance(hash(a), int)",
            ),
        ],
    ),
    Case(
        "slots_class_with_unchanged_layout",
        {
            "~m": "class A:\n    __slots__ = ('x', '__weakref__')\n    def __init__(self):\n        self.x = 1\n    def f(self):\n        return self.x\nclass B(A):\n    __slots__ = ('y',)\n"
        },
        "import ~m as m; a, b = m.A(), m.B(); b.y = 2; A = m.A",
        [
            Step(
                {
                    "~m": [
                        ("return self.x", "return self.x + 1"),
                        ("class A:\n", "class A:\n    'Doc.'\n    KIND = 'a'\n"),
                    ]
                },
                "assert m.A is A and a.f() == b.f() == 2 and a.KIND == 'a' and m.A.__doc__ == 'Doc.' and b.y == 2",
            ),
        ],
    ),
]

FUNCTIONS = [
    Case(
        "async_generator_in_flight",
        {
            "~m": "async def numbers(n):\n    for i in range(n):\n        yield i + shift()\ndef shift():\n    return 0\nasync def total(n):\n    return sum([x async for x in numbers(n)])\n"
        },
        "import ~m as m, asyncio; loop = asyncio.new_event_loop(); gen = m.numbers(3); assert loop.run_until_complete(gen.__anext__()) == 0",
        [
            Step(
                {"~m": [("return 0", "return 100"), ("yield i + shift()", "yield -i - shift()")]},
                "assert loop.run_until_complete(gen.__anext__()) == 101 and loop.run_until_complete(m.total(2)) == -201",
            ),
            Step(
                {"~m": [("return 100", "return 7")]},
                "assert loop.run_until_complete(gen.__anext__()) == 9; assert raises(StopAsyncIteration, lambda: loop.run_until_complete(gen.__anext__())); loop.close()",
            ),
        ],
    ),
    Case(
        "context_managers_in_flight",
        {
            "~m": "import contextlib\nLOG = []\n@contextlib.contextmanager\ndef scope(name):\n    LOG.append(f'in {name}')\n    try:\n        yield name\n    finally:\n        LOG.append(f'out {name}')\nclass Timer:\n    def __enter__(self):\n        LOG.append('enter')\n        return self\n    def __exit__(self, *a):\n        LOG.append('exit old')\n"
        },
        "import ~m as m, contextlib; stack = contextlib.ExitStack(); stack.enter_context(m.scope('a')); stack.enter_context(m.Timer()); log = m.LOG",
        [
            Step(
                {"~m": [("f'out {name}'", "f'OUT {name}'"), ("'exit old'", "'exit new'")]},
                "stack.close(); assert m.LOG is log; assert log == ['in a', 'enter', 'exit old', 'out a'] or log == ['in a', 'enter', 'exit new', 'out a'], log\nwith m.scope('b'): pass\nassert log[-2:] == ['in b', 'OUT b']",
            )
        ],
    ),
    Case(
        "partials_of_methods_and_partialmethod",
        {
            "~m": "import functools\ndef f(a, b, c=0):\n    return (a, b, c)\nclass A:\n    def g(self, x, y=1):\n        return x + y\n    h = functools.partialmethod(g, 10)\nP = functools.partial(f, 1)\nPP = functools.partial(P, 2, c=3)\n"
        },
        "import ~m as m, functools; a = m.A(); p, pp, h, mine = m.P, m.PP, a.h, functools.partial(a.g, 5)",
        [
            Step(
                {
                    "~m": [
                        ("return (a, b, c)", "return (c, b, a)"),
                        ("return x + y", "return x - y"),
                    ]
                },
                "assert p(2) == (0, 2, 1) and pp() == (3, 2, 1) and a.h() == h() == 9 and mine() == 4 and m.PP is pp",
            ),
            Step(
                {
                    "~m": [
                        ("g(self, x, y=1)", "g(self, x, y=2)"),
                        ("partial(P, 2, c=3)", "partial(P, 4, c=3)"),
                    ]
                },
                "assert a.h() == 8 and mine() == 3 and m.PP() == (3, 4, 1)",
            ),
        ],
    ),
    Case(
        "caches_with_size_and_typed",
        {
            "~m": "import functools\nCALLS = []\n@functools.lru_cache(maxsize=2, typed=True)\ndef f(x):\n    CALLS.append(x)\n    return x + 1\n@functools.cache\ndef unrelated(x):\n    CALLS.append('u')\n    return object()\n"
        },
        "import ~m as m; f = m.f; f(1); kept = m.unrelated(1)",
        [
            Step(
                {"~m": [("return x + 1", "return x + 2")]},
                "assert f is m.f and f(1) == 3 and m.unrelated(1) is kept and m.CALLS == [1, 'u', 1]",
            ),
            Step(
                {"~m": [("maxsize=2", "maxsize=4")]},
                "assert m.f.cache_info().maxsize == 4 and m.f(1) == 3 and m.unrelated(1) is kept",
            ),
        ],
    ),
    Case(
        "singledispatch_default_and_lambda",
        {
            "~m": "import functools\n@functools.singledispatch\ndef show(x):\n    return 'any'\n@show.register\ndef _(x: int):\n    return 'int'\n@show.register(str)\ndef _(x):\n    return 'str'\nshow.register(list, lambda x: 'list')\n",
            "~n": "from ~m import show\nclass Own:\n    pass\n@show.register\ndef _own(x: Own):\n    return 'own'\n",
        },
        "import ~m as m, ~n as n; show, own = m.show, n.Own(); assert show(own) == 'own'",
        [
            Step(
                {"~m": [("'int'", "'INT'"), ("'str'", "'STR'"), ("'any'", "'ANY'")]},
                "assert m.show is show; assert [show(x) for x in (1, 'a', [], own, 1.5)] == ['INT', 'STR', 'list', 'own', 'ANY']",
            ),
            Step(
                {"~m": [("'list'", "'LIST'")]}, "assert show([]) == 'LIST' and show(own) == 'own'"
            ),
            Step(
                {"~n": [("class Own:\n    pass", "class Own:\n    k = 1"), ("'own'", "'mine'")]},
                "assert show(own) == show(n.Own()) == 'mine'",
            ),
            Step(
                {"~n": [("@show.register\ndef _own(x: Own):\n    return 'mine'\n", "")]},
                "assert show(own) == 'ANY', show(own)",
            ),
        ],
    ),
    Case(
        "closures_gain_and_lose_free_variables",
        {
            "~m": "def make(n):\n    k = 10\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    def look():\n        return n\n    return step, look\n"
        },
        "import ~m as m; step, look = m.make(0); step()",
        [
            Step(
                {
                    "~m": [
                        ("        return n\n    def look", "        return n * 100\n    def look")
                    ]
                },
                "assert step() == 200 and look() == 2",
            ),
            Step(
                {"~m": [("        return n\n    return", "        return n + k\n    return")]},
                "s, l = m.make(0); assert s() == 100 and l() == 11; assert step() == 300 and look() in (3, 13)",
            ),
            Step(
                {"~m": [("n + k", "-n")]},
                "s, l = m.make(0); s(); assert l() == -1 and look() in (3, -3)",
            ),
        ],
    ),
    Case(
        "generators_delegating_and_sent_to",
        {
            "~m": "def inner():\n    got = yield 1\n    while True:\n        got = yield twice(got)\ndef outer():\n    yield from inner()\ndef twice(x):\n    return 2 * x\n"
        },
        "import ~m as m; g = m.outer(); next(g); assert g.send(2) == 4",
        [
            Step({"~m": [("return 2 * x", "return 3 * x")]}, "assert g.send(2) == 6"),
            Step(
                {
                    "~m": [
                        ("yield 1\n", "yield 5\n"),
                        ("    yield from inner()", "    yield 0\n    yield from inner()"),
                    ]
                },
                "assert g.send(2) == 6 and list(zip(range(2), m.outer())) == [(0, 0), (1, 5)]",
            ),
        ],
    ),
    Case(
        "removed_function_still_in_use",
        {
            "~m": "import functools\ndef gone(x):\n    return helper(x)\ndef helper(x):\n    return x + 1\nclass A:\n    def run(self):\n        return self.part()\n    def part(self):\n        return 1\n"
        },
        "import ~m as m, functools; gone = m.gone; p = functools.partial(m.gone, 1); a = m.A(); part = a.part",
        [
            Step(
                {
                    "~m": "def helper(x):\n    return x + 2\nclass A:\n    def run(self):\n        return 'no part'\n"
                },
                "assert not hasattr(m, 'gone') and gone(1) == 3 == p() + 0 and a.run() == 'no part' and part() == 1 and not hasattr(a, 'part')",
            ),
        ],
    ),
    Case(
        "decorator_factory_with_state",
        {
            "~m": "import functools\ndef counted(step):\n    def wrap(f):\n        calls = 0\n        @functools.wraps(f)\n        def inner(*a):\n            nonlocal calls\n            calls += step\n            return calls, f(*a)\n        inner.peek = lambda: calls\n        return inner\n    return wrap\n@counted(1)\ndef f(x):\n    return x\n"
        },
        "import ~m as m; f = m.f; f(0); f(0)",
        [
            Step(
                {"~m": [("    return x\n", "    return -x\n")]},
                "assert f(5)[1] == m.f(5)[1] == -5 and f is m.f and f.peek() == f(0)[0] - 1",
            ),
            Step(
                {"~m": [("return calls, f(*a)", "return [calls, f(*a)]")]},
                "assert type(f(5)) is list and m.f(1)[1] == -1",
            ),
            Step(
                {"~m": [("@counted(1)", "@counted(10)")]},
                "before = f.peek(); assert f(0)[0] - before == 10, (f(0), before)",
            ),
        ],
    ),
    Case(
        "defaults_that_are_mutable_and_sentinels",
        {
            "~m": "MISSING = object()\ndef f(x=MISSING, seen=[]):\n    seen.append(1)\n    return x is MISSING, len(seen)\ndef kw(*, a=1, b=(2,)):\n    return a, b\n"
        },
        "import ~m as m; f = m.f; f(); M = m.MISSING",
        [
            Step(
                {"~m": [("len(seen)", "-len(seen)")]}, "assert f() == (True, -2) and m.MISSING is M"
            ),
            Step(
                {"~m": [("def kw(*, a=1, b=(2,))", "def kw(*, a=1, b=(3,), c=4)")]},
                "assert m.kw() == (1, (3,)) and f() == (True, -3)",
            ),
            Step(
                {"~m": [("def f(x=MISSING, seen=[])", "def f(x=MISSING, seen=[], y=0)")]},
                "assert f(y=1)[0] is True and m.MISSING is M",
            ),
        ],
    ),
    Case(
        "recursive_and_self_referencing_functions",
        {
            "~m": "def fact(n, me=None):\n    return 1 if n < 2 else n * (me or fact)(n - 1)\nTABLE = {'f': fact}\nfact.table = TABLE\ndef even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n"
        },
        "import ~m as m; fact = m.fact",
        [
            Step(
                {"~m": [("1 if n < 2", "2 if n < 2")]},
                "assert fact(3) == 12 == m.TABLE['f'](3) and fact.table['f'] is fact and m.even(4)",
            ),
            Step(
                {
                    "~m": [
                        ("def even(n):\n    return n == 0", "def even(n, k=0):\n    return n == k")
                    ]
                },
                "assert m.even(4) and m.odd(3) and m.TABLE['f'] is fact",
            ),
        ],
    ),
    Case(
        "tasks_that_wait_and_cancel",
        {
            "~m": "import asyncio\nasync def work(event, log):\n    try:\n        await event.wait()\n        log.append(result())\n    finally:\n        log.append('done')\ndef result():\n    return 'old'\n"
        },
        "import ~m as m, asyncio; loop = asyncio.new_event_loop(); event, log = asyncio.Event(), []; t = loop.create_task(m.work(event, log)); loop.run_until_complete(asyncio.sleep(0))",
        [
            Step(
                {"~m": [("'old'", "'new'"), ("'done'", "'DONE'")]},
                "event.set(); loop.run_until_complete(t); assert log == ['new', 'done'], log; loop.run_until_complete(m.work(event, log)); loop.close(); assert log[2:] == ['new', 'DONE']",
            ),
        ],
    ),
    Case(
        "overloads_and_conditional_functions",
        {
            "~m": "import sys, typing\n@typing.overload\ndef f(x: int) -> int: ...\n@typing.overload\ndef f(x: str) -> str: ...\ndef f(x):\n    return x\nif sys.version_info > (3, 0):\n    def g():\n        return 'new python'\nelse:\n    def g():\n        return 'old python'\ntry:\n    import json as fast\nexcept ImportError:\n    fast = None\n"
        },
        "import ~m as m; f, g = m.f, m.g",
        [
            Step(
                {
                    "~m": [
                        ("    return x\n", "    return (x,)\n"),
                        ("'new python'", "'newest python'"),
                    ]
                },
                "assert f(1) == (1,) and g() == 'newest python' and m.f is f and m.g is g",
            ),
            Step(
                {"~m": [("json as fast", "not_there as fast")]},
                "assert m.fast is None and m.f is f",
            ),
        ],
    ),
    Case(
        "exceptions_with_new_attributes_and_handlers",
        {
            "~m": "class Bad(ValueError):\n    def __str__(self):\n        return 'old'\ndef run():\n    try:\n        fail()\n    except Bad as e:\n        return str(e)\ndef fail():\n    raise Bad()\n"
        },
        "import ~m as m; e = m.Bad(); Bad = m.Bad",
        [
            Step(
                {
                    "~m": [
                        ("'old'", "f'new {self.code}'"),
                        ("class Bad(ValueError):\n", "class Bad(ValueError):\n    code = 4\n"),
                    ]
                },
                "assert m.run() == 'new 4' == str(e) and m.Bad is Bad",
            ),
            Step(
                {
                    "~m": [
                        ("raise Bad()", "raise Worse()"),
                        ("def run", "class Worse(Bad):\n    code = 5\ndef run"),
                    ]
                },
                "assert m.run() == 'new 5' and raises(Bad, m.fail)",
            ),
        ],
    ),
    Case(
        "lambdas_in_defaults_keys_and_comprehensions",
        {
            "~m": "OPS = {'add': lambda a, b: a + b, 'mul': lambda a, b: a * b}\nLADDER = [lambda x, i=i: x + i for i in range(3)]\ndef f(x, key=lambda v: v):\n    return key(x)\nclass A:\n    rule = staticmethod(lambda x: x > 1)\n"
        },
        "import ~m as m; add, l1, f, rule = m.OPS['add'], m.LADDER[1], m.f, m.A.rule; ops = m.OPS; ops['mine'] = add",
        [
            Step(
                {"~m": [("a + b", "a - b")]},
                "assert add(5, 3) == 2 and m.OPS is ops and ops['mine'] is add and m.OPS['mul'](2, 3) == 6",
            ),
            Step({"~m": [("x + i", "x * i")]}, "assert l1(7) == 7 and m.LADDER[2](7) == 14"),
            Step(
                {"~m": [("lambda v: v", "lambda v: -v"), ("x > 1", "x > 5")]},
                "assert f(2) == -2 and not rule(3)",
            ),
        ],
    ),
]

MODULES = [
    Case(
        "star_import_with_changing_all",
        {
            "~m": "__all__ = ['a', 'b']\na = 1\nb = 2\nc = 3\ndef _hidden():\n    return 1\n",
            "~n": "from ~m import *\nSUM = a + b\n",
        },
        "import ~m as m, ~n as n",
        [
            Step(
                {"~m": [("['a', 'b']", "['a', 'b', 'c']"), ("a = 1", "a = 10")]},
                "assert n.SUM == 12 and n.c == 3",
            ),
            Step(
                {"~m": [("'b', 'c'", "'b', '_hidden'")]},
                "assert not hasattr(n, 'c') and n._hidden() == 1",
            ),
            Step(
                {"~m": [("['a', 'b', '_hidden']", "['a']")]},
                "assert n.SUM == 12 and n.a == 10",
                refused="b",
            ),
        ],
    ),
    Case(
        "relative_imports_up_and_down",
        {
            "~p.__init__": "from .core import VALUE\nfrom . import core as kernel\n__all__ = ['VALUE', 'kernel']\n",
            "~p.core": "VALUE = 1\ndef f():\n    return VALUE\n",
            "~p.sub.__init__": "from ..core import f\nfrom .leaf import Leaf\n",
            "~p.sub.leaf": "from .. import VALUE as V\nfrom ..core import f as core_f\nclass Leaf:\n    size = V * 2\n    def go(self):\n        return core_f(), V\n",
        },
        "import ~p as p, ~p.sub as s; leaf = s.Leaf()",
        [
            Step(
                {"~p.core": [("VALUE = 1", "VALUE = 4")]},
                "assert p.VALUE == 4 and s.f() == 4 and leaf.go() == (4, 4) and leaf.size == 8",
            ),
            Step(
                {
                    "~p.sub.leaf": [
                        ("from .. import VALUE as V", "from ..core import VALUE as V"),
                        ("V * 2", "V * 3"),
                    ]
                },
                "assert leaf.size == 12 and s.Leaf().go() == (4, 4)",
            ),
            Step(
                {
                    "~p.__init__": "from .core import VALUE\nfrom . import core as kernel\nVERSION = VALUE + 1\n"
                },
                "assert p.VERSION == 5 and not hasattr(p, '__all__') and p.sub is s",
            ),
        ],
    ),
    Case(
        "circular_imports_by_functions_and_classes",
        {
            "~a": "import ~b\nclass A:\n    def other(self):\n        return ~b.B()\n    def n(self):\n        return 1\n",
            "~b": "import ~a\nclass B:\n    def other(self):\n        return ~a.A()\n    def n(self):\n        return ~a.A().n() + 1\n",
        },
        "import ~a as a, ~b as b; x, y = a.A(), b.B()",
        [
            Step(
                {"~a": [("return 1", "return 5")], "~b": [("+ 1", "+ 2")]},
                "assert y.n() == 7 and type(x.other()) is b.B and type(y.other()) is a.A",
            ),
            Step(
                {
                    "~a": [("import ~b\n", "import ~b\nLIMIT = 3\n")],
                    "~b": [
                        ("class B:\n", "class B:\n    def lim(self):\n        return ~a.LIMIT\n")
                    ],
                },
                "assert y.lim() == 3 and isinstance(y, b.B)",
            ),
        ],
    ),
    Case(
        "package_getattr_lazy",
        {
            "~p.__init__": "import importlib\ndef __getattr__(name):\n    if name == 'LIMIT':\n        return 1\n    if name in ('heavy',):\n        return importlib.import_module('.' + name, __name__)\n    raise AttributeError(name)\ndef __dir__():\n    return ['LIMIT', 'heavy']\n",
            "~p.heavy": "def go():\n    return 'old'\n",
            "~u": "import ~p\ndef use():\n    return ~p.LIMIT, ~p.heavy.go()\n",
        },
        "import ~p as p, ~u as u; assert u.use() == (1, 'old')",
        [
            Step({"~p.heavy": [("'old'", "'new'")]}, "assert u.use() == (1, 'new')"),
            Step(
                {"~p.__init__": [("return 1", "return 2"), ("['LIMIT', 'heavy']", "['LIMIT']")]},
                "assert u.use() == (2, 'new') and dir(p) == ['LIMIT']",
            ),
            Step(
                {"~p.__init__": "LIMIT = 3\nfrom . import heavy\n"},
                "assert u.use() == (3, 'new') and raises(AttributeError, lambda: p.nothing)",
            ),
        ],
    ),
    Case(
        "namespace_package_gains_a_module",
        {
            "~ns.one": "X = 1\ndef f():\n    return X\n",
            "~u": "from ~ns.one import f\ndef g():\n    return f()\n",
        },
        "import ~u as u, ~ns.one as one",
        [
            Step(
                {
                    "~ns.two": "Y = 5\n",
                    "~ns.one": "from ~ns.two import Y\nX = Y + 1\ndef f():\n    return X\n",
                },
                "assert u.g() == 6 and one.f() == 6",
            ),
            Step({"~ns.two": "Y = 7\n"}, "assert u.g() == 8"),
        ],
    ),
    Case(
        "module_state_of_many_kinds_is_kept",
        {
            "~m": "import collections, threading, itertools, random, types\nCOUNT = itertools.count()\nLOCK = threading.Lock()\nRNG = random.Random(1)\nHITS = collections.Counter()\nCFG = types.SimpleNamespace(rate=1)\nQUEUE = collections.deque(maxlen=3)\ntotal = 0\ndef hit():\n    global total\n    total += 1\n    HITS['a'] += 1\n    QUEUE.append(total)\n    return next(COUNT)\nLEVEL = 1\n"
        },
        "import ~m as m; [m.hit() for _ in range(3)]; objs = (m.COUNT, m.LOCK, m.RNG, m.HITS, m.CFG, m.QUEUE); m.CFG.rate = 9",
        [
            Step(
                {
                    "~m": [
                        ("LEVEL = 1", "LEVEL = 2"),
                        ("    HITS['a'] += 1\n", "    HITS['a'] += 10\n"),
                    ]
                },
                "assert objs == (m.COUNT, m.LOCK, m.RNG, m.HITS, m.CFG, m.QUEUE) and m.total == 3 and m.LEVEL == 2 and m.hit() == 3 and m.HITS['a'] == 13 and m.CFG.rate == 9 and list(m.QUEUE) == [2, 3, 4]",
            ),
            Step(
                {"~m": [("SimpleNamespace(rate=1)", "SimpleNamespace(rate=2)")]},
                "assert m.CFG.rate == 2 and m.total == 4 and m.COUNT is objs[0]",
            ),
        ],
    ),
    Case(
        "errors_everywhere_leave_all_as_it_was",
        {
            "~m": "X = 1\nREG = []\ndef reg(f):\n    REG.append(f)\n    return f\n@reg\ndef a():\n    return X\n",
            "~n": "from ~m import X, a\nY = X + 1\n",
        },
        "import ~m as m, ~n as n; a = m.a",
        [
            Step(
                {
                    "~m": [
                        ("X = 1", "X = 2\n@reg\ndef b(): return 3\nraise RuntimeError('half way')")
                    ]
                },
                "assert (m.X, n.Y, m.REG, a()) == (1, 2, [a], 1) and not hasattr(m, 'b')",
                refused="name 'reg' is not defined",
            ),
            Step(
                {
                    "~m": "X = 2\nREG = []\ndef reg(f):\n    REG.append(f)\n    return f\n@reg\ndef a():\n    return X\n@reg\ndef b():\n    return 2\nraise RuntimeError('half way')\n"
                },
                "assert (m.X, n.Y, m.REG, a()) == (1, 2, [a], 1) and not hasattr(m, 'b')",
                refused="half way",
            ),
            Step(
                {"~m": "X = 2\ndef a(:\n", "~n": "from ~m import X, a\nY = X + 5\n"},
                "assert (m.X, n.Y) == (1, 2)",
                refused="SyntaxError",
            ),
            Step(
                {"~m": "X = 3\nimport not_a_module_at_all\n", "~n": "from ~m import X\nY = X\n"},
                "assert (m.X, n.Y, m.a) == (1, 2, a)",
                refused="not_a_module_at_all",
            ),
            Step(
                {
                    "~m": "X = 'text'\nREG = []\ndef a():\n    return X\n",
                    "~n": "from ~m import X, a\nY = X + 1\n",
                },
                "assert (m.X, n.Y, a()) == (1, 2, 1)",
                refused="TypeError",
            ),
            Step(
                {
                    "~m": "X = 6\nREG = []\ndef reg(f):\n    REG.append(f)\n    return f\n@reg\ndef a():\n    return X\n",
                    "~n": "from ~m import X, a\nY = X + 1\n",
                },
                "assert (m.X, n.Y, a()) == (6, 7, 6) and m.a is a and m.REG == [a]",
            ),
        ],
    ),
    Case(
        "file_deleted_and_recreated",
        {
            "~m": "def f():\n    return 1\nclass A:\n    def g(self):\n        return 1\nSTATE = {}\n",
            "~u": "def use():\n    import ~m\n    return ~m.f()\n",
        },
        "import ~m as m, ~u as u; a, f = m.A(), m.f; m.STATE['k'] = 1; state = m.STATE",
        [
            Step({"~m": None}, "assert f() == 1 and a.g() == 1"),
            Step(
                {
                    "~m": "def f():\n    return 2\nclass A:\n    def g(self):\n        return 2\nSTATE = {}\n"
                },
                "assert u.use() == 2",
            ),
            Step(
                {"~m": [("return 2", "return 3")]},
                "import sys; assert u.use() == 3 and sys.modules['~m'].A().g() == 3",
            ),
        ],
    ),
    Case(
        "one_of_two_edits_fails_then_both_go",
        {
            "~m": "X = 1\ndef f():\n    return X\n",
            "~n": "import ~m\ndef g():\n    return ~m.f() + 1\nZ = ~m.X\n",
        },
        "import ~m as m, ~n as n; f, g = m.f, n.g",
        [
            Step(
                {"~m": [("X = 1", "X = 2")], "~n": [("Z = ~m.X", "Z = ~m.X / 0")]},
                "assert (f(), g(), n.Z) == (1, 2, 1)",
                refused="ZeroDivisionError",
            ),
            Step({"~n": [("/ 0", "/ 1")]}, "assert (f(), g(), n.Z) == (2, 3, 2)"),
        ],
    ),
    Case(
        "constants_through_f_strings_and_containers",
        {
            "~c": "RATE = 1\nNAMES = ('a', 'b')\nLIMITS = {'lo': 0}\n",
            "~m": "from ~c import RATE, NAMES, LIMITS\nimport ~c as c\nTITLE = f'rate {RATE}'\nTABLE = {name: RATE for name in NAMES}\nLO, HI = LIMITS['lo'], c.RATE + 10\nclass K:\n    title = TITLE\n    slots = len(NAMES)\ndef f(x=RATE, *, t=TITLE):\n    return x, t\n",
        },
        "import ~m as m; f = m.f; k = m.K()",
        [
            Step(
                {"~c": [("RATE = 1", "RATE = 2"), ("('a', 'b')", "('a', 'b', 'c')")]},
                "assert m.TITLE == 'rate 2' == k.title and m.TABLE == dict.fromkeys('abc', 2) and m.HI == 12 and f() == (2, 'rate 2') and k.slots == 3",
            ),
            Step({"~c": [("'lo': 0", "'lo': -1")]}, "assert m.LO == -1 and m.TITLE == 'rate 2'"),
        ],
    ),
    Case(
        "logging_configuration",
        {
            "~m": "import logging, logging.config\nlogging.config.dictConfig({'version': 1, 'disable_existing_loggers': False, 'handlers': {'h': {'class': 'logging.NullHandler'}}, 'loggers': {'~log': {'handlers': ['h'], 'level': 'INFO'}}})\nlog = logging.getLogger('~log')\nclass Tag(logging.Filter):\n    def filter(self, record):\n        record.tag = 'old'\n        return True\nlog.addFilter(Tag())\ndef tagged():\n    r = log.makeRecord('~log', 20, 'x', 1, 'm', (), None)\n    log.filter(r)\n    return r.tag\n"
        },
        "import ~m as m; log = m.log; assert m.tagged() == 'old'",
        [
            Step(
                {"~m": [("'old'", "'new'")]},
                "assert m.tagged() == 'new' and len(log.handlers) == 1 and len(log.filters) == 1 and m.log is log",
            ),
            Step(
                {"~m": [("'INFO'", "'DEBUG'")]},
                "assert log.level == 10 and len(log.handlers) == 1 and m.tagged() == 'new', (log.level, log.handlers)",
            ),
        ],
    ),
    Case(
        "module_renamed_with_pickles_of_its_class",
        {
            "~old": "class A:\n    def f(self):\n        return 'old'\ndef make():\n    return A()\n",
            "~u": "from ~old import A, make\ndef fresh():\n    return make().f()\n",
        },
        "import ~u as u; a = u.A(); A = u.A",
        [
            Step(
                {
                    "~old": None,
                    "~new": "class A:\n    def f(self):\n        return 'new'\ndef make():\n    return A()\n",
                    "~u": [("~old", "~new")],
                },
                "assert u.fresh() == 'new' and a.f() == 'new' and isinstance(a, u.A) and u.A is A, (u.fresh(), a.f())",
            ),
        ],
    ),
    Case(
        "class_renamed_with_an_alias_left",
        {
            "~m": "class Old:\n    def f(self):\n        return 1\ndef make():\n    return Old()\n",
            "~u": "import ~m\ndef use():\n    return ~m.make().f()\n",
        },
        "import ~m as m, ~u as u; o = m.Old()",
        [
            Step(
                {
                    "~m": "class New:\n    def f(self):\n        return 2\nOld = New\ndef make():\n    return New()\n"
                },
                "assert u.use() == 2 and isinstance(m.make(), m.Old) and m.Old is m.New",
            ),
            Step({"~m": [("return 2", "return 3")]}, "assert u.use() == 3 and m.New().f() == 3"),
        ],
    ),
    Case(
        "names_that_shadow_builtins",
        {"~m": "def use():\n    return len([1, 2]), sum([1, 2])\n"},
        "import ~m as m; use = m.use",
        [
            Step(
                {
                    "~m": "def len(x):\n    return 'mine'\ndef use():\n    return len([1, 2]), sum([1, 2])\n"
                },
                "assert use() == ('mine', 3)",
            ),
            Step(
                {"~m": "def use():\n    return len([1, 2]), sum([1, 2])\n"},
                "assert use() == (2, 3)",
            ),
        ],
    ),
    Case(
        "global_that_running_code_rebinds",
        {
            "~m": "STEP = 0\nBEST = None\nMODE = 'a'\ndef advance():\n    global STEP, BEST\n    STEP += 1\n    BEST = (STEP, MODE)\n    return BEST\n"
        },
        "import ~m as m; m.advance(); m.advance()",
        [
            Step(
                {"~m": [("MODE = 'a'", "MODE = 'b'")]},
                "assert (m.STEP, m.BEST) == (2, (2, 'a')) and m.advance() == (3, 'b')",
            ),
            Step(
                {"~m": [("STEP = 0\n", "STEP = 0\nOTHER = 1\n"), ("STEP += 1", "STEP += OTHER")]},
                "assert m.STEP == 3 and m.advance() == (4, 'b')",
            ),
            Step(
                {"~m": [("STEP = 0", "STEP = 100")]}, "assert m.STEP == 100 and m.BEST == (4, 'b')"
            ),
        ],
    ),
    Case(
        "future_annotations_come_and_go",
        {
            "~m": "import typing\nclass A:\n    x: int = 1\n    def f(self, o: 'A') -> 'A':\n        return o\n"
        },
        "import ~m as m, typing; a, f = m.A(), m.A.f",
        [
            Step(
                {
                    "~m": "from __future__ import annotations\nimport typing\nclass A:\n    x: int = 1\n    def f(self, o: A) -> A:\n        return self\n"
                },
                "assert typing.get_type_hints(f) == {'o': m.A, 'return': m.A} and a.f(1) is a and typing.get_type_hints(m.A) == {'x': int}",
            ),
            Step(
                {
                    "~m": "import typing\nclass A:\n    x: int = 1\n    y: str = ''\n    def f(self, o: 'A') -> 'A':\n        return o\n"
                },
                "assert a.f(1) == 1 and m.A.__annotations__ == {'x': int, 'y': str}",
            ),
        ],
    ),
    Case(
        "tabs_become_spaces_and_crlf",
        {"~m": "def f():\n\treturn 1\nclass A:\n\tdef g(self):\n\t\treturn 1\n\tN = []\n"},
        "import ~m as m; a, f, N = m.A(), m.f, m.A.N",
        [
            Step(
                {
                    "~m": "def f():\r\n    return 1\r\nclass A:\r\n    def g(self):\r\n        return 2\r\n    N = []\r\n"
                },
                "assert f() == 1 and a.g() == 2 and m.A.N is N",
            ),
            Step(
                {
                    "~m": "def f():\n\n  return 3\n\nclass A:\n\n  N = []\n\n  def g(self):\n    return 3\n"
                },
                "assert f() == 3 and a.g() == 3 and m.A.N is N",
            ),
        ],
    ),
    Case(
        "multi_line_strings_docs_and_semicolons",
        {
            "~m": "'''Doc.'''\nx = 1; y = 2; z = []\nTEXT = '''a\nb'''\ndef f(): 'doc'; return TEXT\n"
        },
        "import ~m as m; z, f = m.z, m.f; z.append(1)",
        [
            Step(
                {"~m": [("y = 2", "y = 3"), ("a\nb", "a\nc")]},
                "assert (m.x, m.y, f()) == (1, 3, 'a\\nc') and m.z is z and m.z == [1]",
            ),
            Step(
                {"~m": [("'''Doc.'''", "'''New doc.'''"), ("'doc'", "'new doc'")]},
                "assert m.__doc__ == 'New doc.' and f.__doc__ == 'new doc' and m.z is z",
            ),
        ],
    ),
    Case(
        "context_variables_threads_and_locals",
        {
            "~m": "import contextvars, threading\nVAR = contextvars.ContextVar('v', default=0)\nTL = threading.local()\nTL.n = 1\ndef f():\n    return VAR.get() + TL.n\n"
        },
        "import ~m as m; m.VAR.set(5); m.TL.n = 2; V = m.VAR",
        [
            Step({"~m": [("+ TL.n", "- TL.n")]}, "assert m.f() == 3 and m.VAR is V"),
            Step(
                {"~m": [("TL.n = 1\n", "TL.n = 1\nK = 1\n")]},
                "assert m.f() == 3 and m.VAR is V and m.K == 1",
            ),
        ],
    ),
    Case(
        "instance_singletons_and_proxies",
        {
            "~m": "class Conf:\n    _one = None\n    def __new__(cls):\n        if cls._one is None:\n            cls._one = super().__new__(cls)\n            cls._one.loads = 0\n        return cls._one\n    def load(self):\n        self.loads += 1\n        return self.loads\nCONF = Conf()\nLOADED = CONF.load()\n"
        },
        "import ~m as m; conf = m.CONF; assert m.LOADED == 1",
        [
            Step(
                {"~m": [("        return self.loads\n", "        return self.loads * 10\n")]},
                "assert m.Conf() is conf is m.CONF",
            ),
            Step(
                {"~m": [("    _one = None\n", "    _one = None\n    kind = 'c'\n")]},
                "assert m.Conf() is conf is m.CONF and conf.kind == 'c'",
            ),
        ],
    ),
    Case(
        "subclasses_in_other_modules_follow_an_edited_hook",
        {
            "~m": "class Plugin:\n    registry = {}\n    def __init_subclass__(cls):\n        Plugin.registry[cls.__name__] = cls\n    @classmethod\n    def create(cls, name):\n        return cls.registry[name]()\n",
            "~p": "from ~m import Plugin\nclass Red(Plugin):\n    def go(self):\n        return 'red'\nclass Blue(Plugin):\n    def go(self):\n        return 'blue'\n",
        },
        "import ~m as m, ~p as p; red = m.Plugin.create('Red')",
        [
            Step(
                {
                    "~p": "from ~m import Plugin\nclass Red(Plugin):\n    def go(self):\n        return 'RED'\nclass Green(Plugin):\n    def go(self):\n        return 'green'\n"
                },
                "assert red.go() == 'RED' and sorted(m.Plugin.registry) == ['Green', 'Red'] and m.Plugin.create('Green').go() == 'green'",
            ),
            Step(
                {"~m": [("return cls.registry[name]()", "return cls.registry[name.title()]()")]},
                "assert m.Plugin.create('red').go() == 'RED' and type(red) is m.Plugin.registry['Red']",
            ),
        ],
    ),
    Case(
        "statements_with_side_effects_on_the_same_name",
        {
            "~m": "PATHS = []\nPATHS.append('a')\nPATHS += ['b']\nfor p in ('c', 'd'):\n    PATHS.append(p)\nwith open(__file__) as f:\n    SIZE = len(f.read()) > 0\nassert PATHS\n"
        },
        "import ~m as m; m.PATHS.append('live')",
        [
            Step(
                {"~m": [("assert PATHS\n", "assert PATHS\nX = 1\n")]},
                "assert m.PATHS == ['a', 'b', 'c', 'd', 'live'] and m.X == 1",
            ),
            Step(
                {"~m": [("('c', 'd')", "('c', 'e')")]},
                "assert m.PATHS[-1] != 'd' and 'e' in m.PATHS and m.PATHS.count('a') == 1, m.PATHS",
            ),
        ],
    ),
    Case(
        "mixin_that_wraps_by_getattribute",
        {
            "~m": "class Proxy:\n    def __init__(self, target):\n        object.__setattr__(self, '_t', target)\n    def __getattr__(self, name):\n        return getattr(self._t, name)\n    def __setattr__(self, name, value):\n        setattr(self._t, name, value)\nclass T:\n    x = 1\n    def f(self):\n        return self.x\nP = Proxy(T())\n"
        },
        "import ~m as m; p = m.P; p.x = 7",
        [
            Step({"~m": [("return self.x", "return -self.x")]}, "assert p.f() == -7 and m.P is p"),
            Step(
                {
                    "~m": [
                        ("getattr(self._t, name)", "getattr(self._t, name.lower())"),
                        ("    x = 1\n", "    x = 1\n    y = 2\n"),
                    ]
                },
                "assert p.F() == -7 and p.Y == 2 and m.P is p",
            ),
        ],
    ),
    Case(
        "registries_in_deques_and_counters",
        {
            "~m": "import collections\nHOOKS = collections.deque()\nBY_KIND = collections.Counter()\nSEEN = collections.OrderedDict()\ndef hook(kind):\n    def add(f):\n        HOOKS.appendleft(f)\n        BY_KIND[kind] += 1\n        SEEN[f.__name__] = kind\n        return f\n    return add\n",
            "~n": "from ~m import hook\n@hook('x')\ndef a():\n    return 1\n",
        },
        "import ~m as m, ~n as n; a = n.a",
        [
            Step(
                {
                    "~n": "from ~m import hook\n@hook('x')\ndef a():\n    return 1\n@hook('y')\ndef b():\n    return 2\n1 / 0\n"
                },
                "assert list(m.HOOKS) == [a] and m.BY_KIND == {'x': 1} and list(m.SEEN) == ['a']",
                refused="ZeroDivisionError",
            ),
            Step(
                {
                    "~n": "from ~m import hook\n@hook('x')\ndef a():\n    return 1\n@hook('y')\ndef b():\n    return 2\n"
                },
                "assert list(m.HOOKS) == [n.b, a] and m.BY_KIND == {'x': 1, 'y': 1} and list(m.SEEN) == ['a', 'b'], (m.HOOKS, m.BY_KIND)",
            ),
        ],
    ),
    Case(
        "decorator_that_is_an_instance_with_state",
        {
            "~m": "import functools\nclass Count:\n    def __init__(self, f):\n        functools.update_wrapper(self, f)\n        self.f, self.n = f, 0\n    def __call__(self, *a):\n        self.n += 1\n        return self.f(*a)\n    def __get__(self, obj, owner=None):\n        return functools.partial(self, obj) if obj is not None else self\n@Count\ndef f(x):\n    return x\nclass A:\n    @Count\n    def g(self):\n        return 1\n"
        },
        "import ~m as m; f, a = m.f, m.A(); f(1); a.g(); g = a.g",
        [
            Step(
                {
                    "~m": [
                        ("    return x\n", "    return -x\n"),
                        ("        return 1\n", "        return 2\n"),
                    ]
                },
                "assert m.f is f and f(1) == -1 and f.n == 2 and a.g() == g() == 2",
            ),
            Step(
                {"~m": [("return self.f(*a)", "return [self.f(*a)]")]},
                "assert f(1) == [-1] and g() == [2] and m.f is f",
            ),
        ],
    ),
    Case(
        "callbacks_that_wait_in_the_standard_library",
        {
            "~m": "import asyncio, threading, weakref, contextlib\nLOG = []\ndef note(what='x'):\n    LOG.append(('old', what))\nclass K:\n    pass\n"
        },
        "import ~m as m, asyncio, threading, weakref, contextlib, gc; loop = asyncio.new_event_loop(); loop.call_soon(m.note, 'soon'); t = threading.Timer(30, m.note, ['timer']); k = m.K(); weakref.finalize(k, m.note, 'final'); s = contextlib.ExitStack(); s.callback(m.note, 'exit'); it = map(m.note, ['map']); log = m.LOG",
        [
            Step(
                {"~m": [("'old'", "'new'")]},
                "loop.run_until_complete(asyncio.sleep(0)); loop.close(); t.function(*t.args); del k; gc.collect(); s.close(); list(it); assert m.LOG is log and log == [('new', w) for w in ('soon', 'timer', 'final', 'exit', 'map')], log",
            )
        ],
    ),
    Case(
        "async_context_manager_in_flight",
        {
            "~m": "import contextlib, asyncio\nLOG = []\n@contextlib.asynccontextmanager\nasync def scope():\n    LOG.append('in')\n    try:\n        yield 1\n    finally:\n        LOG.append(bye())\ndef bye():\n    return 'old'\nclass Res:\n    async def __aenter__(self):\n        return self\n    async def __aexit__(self, *a):\n        LOG.append(bye())\nasync def run(event):\n    async with scope(), Res():\n        await event.wait()\n"
        },
        "import ~m as m, asyncio; loop = asyncio.new_event_loop(); event = asyncio.Event(); t = loop.create_task(m.run(event)); loop.run_until_complete(asyncio.sleep(0))",
        [
            Step(
                {
                    "~m": [
                        ("'old'", "'new'"),
                        (
                            "        LOG.append(bye())\nasync def",
                            "        LOG.append(bye() + '!')\nasync def",
                        ),
                    ]
                },
                "event.set(); loop.run_until_complete(t); loop.close(); assert m.LOG in (['in', 'new!', 'new'], ['in', 'new', 'new']), m.LOG",
            ),
        ],
    ),
    Case(
        "conditional_classes_and_try_blocks",
        {
            "~m": "FAST = False\nif FAST:\n    class A:\n        def f(self):\n            return 'fast'\nelse:\n    class A:\n        def f(self):\n            return 'slow'\ntry:\n    def g():\n        return 1\nfinally:\n    DONE = True\nfor _name in ('p', 'q'):\n    globals()[_name] = lambda n=_name: n\n"
        },
        "import ~m as m; a, A, g, p = m.A(), m.A, m.g, m.p",
        [
            Step(
                {"~m": [("'slow'", "'slower'"), ("return 1", "return 2")]},
                "assert a.f() == 'slower' and g() == 2 and m.A is A",
            ),
            Step(
                {"~m": [("FAST = False", "FAST = True")]},
                "assert m.A().f() == a.f() == 'fast' and m.A is A and g() == 2 and p() == 'p'",
            ),
        ],
    ),
    Case(
        "class_gains_getattr_del_and_missing",
        {
            "~m": "class A:\n    x = 1\nclass D(dict):\n    def __missing__(self, key):\n        return 'old'\n"
        },
        "import ~m as m; a, d = m.A(), m.D(k=1)",
        [
            Step(
                {
                    "~m": [
                        (
                            "    x = 1\n",
                            "    x = 1\n    def __getattr__(self, name):\n        return name\n    def __setattr__(self, name, value):\n        object.__setattr__(self, name, value * 2)\n",
                        ),
                        ("'old'", "'new'"),
                    ]
                },
                "a.z = 2; assert a.other == 'other' and a.z == 4 and d['no'] == 'new' and d == {'k': 1}",
            ),
            Step(
                {"~m": "class A:\n    x = 1\nclass D(dict):\n    pass\n"},
                "a.z = 3; assert a.z == 3 and not hasattr(a, 'other') and raises(KeyError, lambda: d['no'])",
            ),
        ],
    ),
    Case(
        "errors_in_set_name_and_init_subclass",
        {
            "~m": "class Field:\n    def __set_name__(self, owner, name):\n        if name.startswith('bad'):\n            raise ValueError('no ' + name)\nclass Base:\n    def __init_subclass__(cls):\n        if not hasattr(cls, 'tag'):\n            raise TypeError('tag, please')\nclass A(Base):\n    tag = 1\n    good = Field()\n"
        },
        "import ~m as m; a, A, good = m.A(), m.A, m.A.good",
        [
            Step(
                {"~m": [("    good = Field()", "    good = Field()\n    bad = Field()")]},
                "assert m.A is A and not hasattr(a, 'bad') and m.A.good is good",
                refused="bad",
            ),
            Step(
                {
                    "~m": "class Base:\n    def __init_subclass__(cls):\n        if not hasattr(cls, 'tag'):\n            raise TypeError('tag, please')\nclass A(Base):\n    pass\n"
                },
                "assert a.tag == 1 and m.A is A and hasattr(m, 'Field')",
                refused="tag, please",
            ),
            Step(
                {"~m": "class Base:\n    pass\nclass A(Base):\n    pass\n"},
                "assert not hasattr(a, 'tag') and m.A is A and not hasattr(m, 'Field') and isinstance(a, m.Base)",
            ),
        ],
    ),
    Case(
        "unions_aliases_and_annotated_users",
        {
            "~m": "from typing import Optional, Union\nNumber = Union[int, float]\ndef f(x: Number = 1) -> Optional[Number]:\n    return x\nclass A:\n    n: Number = 0\n",
            "~n": "from ~m import Number\nimport typing\nARGS = typing.get_args(Number)\nOk = ARGS\n",
        },
        "import ~m as m, ~n as n, typing; f, a = m.f, m.A()",
        [
            Step(
                {"~m": [("[int, float]", "[int, float, str]")]},
                "assert n.ARGS == (int, float, str) and typing.get_type_hints(f)['x'] == m.Number and typing.get_type_hints(m.A)['n'] == m.Number and m.f is f and isinstance(a, m.A)",
            )
        ],
    ),
    Case(
        "slots_dataclass_field_is_refused_and_taken_back",
        {
            "~m": "from dataclasses import dataclass\n@dataclass(slots=True)\nclass P:\n    x: int = 1\n    def f(self):\n        return self.x\ndef other():\n    return 1\n"
        },
        "import ~m as m; p, f = m.P(2), m.other",
        [
            Step(
                {"~m": [("x: int = 1", "x: int = 1\n    y: int = 2"), ("return 1", "return 2")]},
                "assert p.f() == 2 and f() == 1 and isinstance(p, m.P) and repr(p).endswith('P(x=2)')",
                refused="__slots__",
            ),
            Step(
                {"~m": [("\n    y: int = 2", "")]},
                "assert p.f() == 2 and f() == 2 and isinstance(p, m.P)",
            ),
        ],
    ),
    Case(
        "two_pushes_that_undo_each_other",
        {
            "~m": "A = 1\ndef f():\n    return A\nclass C:\n    v = A\n    def g(self):\n        return self.v\n",
            "~n": "from ~m import C, f\nX = f() + C.v\nclass D(C):\n    pass\n",
        },
        "import ~m as m, ~n as n; d = n.D(); C = m.C",
        [
            Step(
                {
                    "~m": "B = 5\ndef f():\n    return B\nclass C:\n    w = B\n    def g(self):\n        return self.w\n",
                    "~n": "from ~m import C, f\nX = f() + C.w\nclass D(C):\n    pass\n",
                },
                "assert n.X == 10 and d.g() == 5 and m.C is C and not hasattr(m, 'A') and not hasattr(C, 'v')",
            ),
            Step(
                {
                    "~m": "A = 1\ndef f():\n    return A\nclass C:\n    v = A\n    def g(self):\n        return self.v\n",
                    "~n": "from ~m import C, f\nX = f() + C.v\nclass D(C):\n    pass\n",
                },
                "assert n.X == 2 and d.g() == 1 and m.C is C and not hasattr(m, 'B') and not hasattr(C, 'w')",
            ),
        ],
    ),
    Case(
        "lists_that_the_module_edits_in_the_middle",
        {
            "~m": "ORDER = ['a', 'b', 'c']\nORDER.insert(1, 'x')\ndel ORDER[0]\nORDER.reverse()\n",
            "~n": "import ~m\n~m.ORDER.append('n')\n",
        },
        "import ~m as m, ~n as n; order = m.ORDER; order.append('live')",
        [
            Step(
                {"~n": "import ~m\n~m.ORDER.insert(0, 'first')\n~m.ORDER.remove('b')\n1 / 0\n"},
                "assert m.ORDER is order == ['c', 'b', 'x', 'n', 'live']",
                refused="ZeroDivisionError",
            ),
            Step(
                {"~n": "import ~m\n~m.ORDER.insert(0, 'first')\n~m.ORDER.remove('b')\n"},
                "assert m.ORDER is order and order[0] == 'first' and 'b' not in order and order[-1] == 'live' and order.index('c') < order.index('x'), order",
            ),
        ],
    ),
    Case(
        "instance_registries_that_running_code_fills",
        {
            "~m": "class App:\n    def __init__(self):\n        self.routes, self.hits = {}, {}\n    def route(self, path):\n        def add(f):\n            self.routes[path] = f\n            self.hits.setdefault(path, 0)\n            return f\n        return add\n    def call(self, path):\n        self.hits[path] += 1\n        return self.routes[path]()\napp = App()\n",
            "~n": "from ~m import app\n@app.route('/a')\ndef a():\n    return 'old'\n",
        },
        "import ~m as m, ~n as n; app = m.app; app.call('/a')",
        [
            Step(
                {"~n": [("'old'", "'new'")]},
                "assert app.call('/a') == 'new' and app.hits == {'/a': 2}",
            ),
            Step(
                {
                    "~n": "from ~m import app\n@app.route('/a')\ndef a():\n    return 'newer'\n@app.route('/b')\ndef b():\n    return 'b'\n"
                },
                "assert app.call('/a') == 'newer' and app.call('/b') == 'b' and app.hits == {'/a': 3, '/b': 1}",
            ),
            Step(
                {"~n": "from ~m import app\n@app.route('/b')\ndef b():\n    return 'b2'\n"},
                "assert list(app.routes) == ['/b'] and app.call('/b') == 'b2' and app.hits['/a'] == 3",
            ),
        ],
    ),
]

CASES = [*CLASSES, *FUNCTIONS, *MODULES]
