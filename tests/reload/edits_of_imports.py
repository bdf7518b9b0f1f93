"""Edits of what modules take from each other: by star, by name, by one import of several."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

_TWO_STARS = "from ~a import *\nfrom ~b import *\n"

STARS = [
    Case(
        "names_of_several_stars",
        {
            "~a": "X = 1\nP = 1\n",
            "~b": "X = 2\nQ = 2\n",
            "~c": "Z = 3\n",
            "~u": _TWO_STARS
            + "from ~c import *\nV = X + Z\ndef total():\n    return P + Q + Z\nT = total()\n",
        },
        "import ~u as u",
        [
            Step(
                {"~a": "X = 10\nP = 10\n"},
                "assert (u.X, u.P, u.V, u.T, u.total()) == (2, 10, 5, 15, 15)",
            ),
            Step({"~b": "Q = 2\n"}, "assert (u.X, u.V) == (10, 13)"),
            Step({"~c": "Z = 30\nX = 5\n"}, "assert (u.X, u.V, u.T) == (5, 35, 42)"),
            Step({"~c": "Z = 30\n"}, "assert (u.X, u.V) == (10, 40)"),
            Step({"~a": "P = 10\n", "~b": "Q = 2\nX = 7\n"}, "assert (u.X, u.V) == (7, 37)"),
        ],
    ),
    Case(
        "name_that_one_of_several_stars_loses",
        {
            "~a": "X = 1\nP = 1\n",
            "~b": "Q = 2\ndef f():\n    return 'b'\n",
            "~u": _TWO_STARS + "V = Q\n",
        },
        "import ~u as u",
        [
            Step(
                {"~a": "X = 1\n"},
                "assert not hasattr(u, 'P') and (u.X, u.V, u.f()) == (1, 2, 'b')",
            ),
            Step(
                {"~a": "X = 1\ndef f():\n    return 'a'\n", "~b": "Q = 2\n"},
                "assert u.f() == 'a' and u.f.__module__ == '~a'",
            ),
            Step({"~u": "from ~b import *\nV = Q\n"}, "assert not hasattr(u, 'X') and u.V == 2"),
            Step(
                {"~u": "V = 0\nfrom ~b import *\nfrom ~a import *\n"},
                "assert (u.X, u.V, u.Q) == (1, 0, 2)",
            ),
        ],
    ),
    Case(
        "stars_in_another_order",
        {"~a": "X = 1\n", "~b": "X = 2\n", "~u": _TWO_STARS + "V = X\n"},
        "import ~u as u",
        [
            Step({"~u": [(_TWO_STARS, "from ~b import *\nfrom ~a import *\n")]}, "assert u.V == 1"),
            Step({"~u": [("from ~a import *\n", "")]}, "assert u.V == 2"),
            Step({"~u": [("V =", "from ~a import *\nV =")]}, "assert u.V == 1"),
            Step({"~u": [("V =", "X = 5\nV =")]}, "assert u.V == 5"),
            Step({"~u": [("X = 5\n", "")]}, "assert (u.X, u.V) == (1, 1)"),
        ],
    ),
    Case(
        "own_names_below_a_star",
        {
            "~a": "X = 1\nY = 3\ndef f():\n    return 'a'\n",
            "~u": "from ~a import *\nV = X\nX = 5\ndef f():\n    return 'u'\nkept = []\n",
        },
        "import ~u as u; f, kept = u.f, u.kept",
        [
            Step(
                {"~a": [("X = 1", "X = 2"), ("'a'", "'aa'")]},
                "assert (u.X, u.V, u.f()) == (5, 2, 'u') and u.kept is kept and u.f is f",
            ),
            Step(
                {"~u": [("def f():\n    return 'u'\n", "")]},
                "assert u.f() == 'aa' and u.kept is kept",
            ),
            Step({"~u": [("X = 5\n", "")]}, "assert (u.X, u.V) == (2, 2)"),
        ],
    ),
    Case(
        "what_all_says",
        {
            "~n": "N = ['X']\n",
            "~a": "__all__ = ['X']\n__all__ += ['Y']\nX = 1\nY = 2\n_Z = 3\n",
            "~b": "import ~n\n__all__ = list(~n.N)\nX = 11\nW = 12\n",
            "~u": "from ~a import *\nV = X\n",
            "~w": "from ~b import *\nV = X\n",
        },
        "import ~u as u, ~w as w",
        [
            Step({"~a": [("__all__ += ['Y']\n", "")]}, "assert not hasattr(u, 'Y') and u.V == 1"),
            Step(
                {"~a": [("__all__ = ['X']\n", "__all__ = ['X']\n__all__.append('_Z')\n")]},
                "assert u._Z == 3 and not hasattr(u, 'Y')",
            ),
            Step({"~a": [("_Z = 3", "_Z = 4")]}, "assert u._Z == 4"),
            Step(
                {"~a": [("__all__ = ['X']\n__all__.append('_Z')\n", "")]},
                "assert u.Y == 2 and not hasattr(u, '_Z')",
            ),
            Step({"~n": "N = ['X', 'W']\n"}, "assert (w.V, w.W) == (11, 12)"),
            Step({"~n": "N = ['X']\n"}, "assert w.V == 11 and not hasattr(w, 'W')"),
        ],
    ),
    Case(
        "stars_of_stars_through_a_package",
        {
            "~p/__init__": "from .x import *\nfrom .y import *\n",
            "~p/x": "X = 1\ndef f():\n    return 'old'\ndef g():\n    return 1\n",
            "~p/y": "Y = 1\n",
            "~q": "from ~p import *\n",
            "~u": "from ~q import *\nV = X + Y\nW = f()\n",
        },
        "import ~u as u, ~p as p, ~q as q; f = u.f",
        [
            Step(
                {"~p/x": [("X = 1", "X = 5"), ("'old'", "'new'")]},
                "assert (p.X, q.X, u.X, u.V, u.W) == (5, 5, 5, 6, 'new') and u.f is f",
            ),
            Step(
                {"~p/x": [("def g():\n    return 1\n", "Z = 9\n")]},
                "assert (p.Z, q.Z, u.Z) == (9, 9, 9) and not any(hasattr(m, 'g') for m in (p, q, u))",
            ),
            Step({"~p/y": "Y = 2\nX = 8\n"}, "assert (u.X, u.V) == (8, 10)"),
        ],
    ),
    Case(
        "star_inside_of_a_choice",
        {
            "~a": "X = 1\ndef f():\n    return 'a'\n",
            "~b": "X = 2\nY = 3\ndef f():\n    return 'b'\n",
            "~u": "FLAG = True\nif FLAG:\n    from ~a import *\nelse:\n    from ~b import *\nV = X\nW = f()\n",
        },
        "import ~u as u",
        [
            Step({"~a": [("X = 1", "X = 5")]}, "assert (u.X, u.V) == (5, 5)"),
            Step({"~u": [("True", "False")]}, "assert (u.X, u.V, u.Y, u.W) == (2, 2, 3, 'b')"),
            Step(
                {"~b": [("X = 2", "X = 7"), ("'b'", "'bb'")]},
                "assert (u.X, u.V, u.W) == (7, 7, 'bb')",
            ),
        ],
    ),
]
NAMES = [
    Case(
        "name_that_others_import_is_lost",
        {
            "~a": "X = 1\nY = 2\ndef f():\n    return 1\nclass A:\n    pass\n",
            "~u": "from ~a import X, Y, f, A\nV = Y\n",
        },
        "import ~u as u, ~a as a",
        [
            Step({"~a": [("X = 1\n", "")]}, "assert a.X == u.X == 1", refused="import name 'X'"),
            Step(
                {"~a": "X = 1\nY = 2\nclass A:\n    pass\n"},
                "assert a.f is u.f and a.f() == 1",
                refused="cannot import name",
            ),
            Step(
                {"~a": "Y = 3\n", "~u": "from ~a import Y\nV = Y\n"},
                "assert u.V == 3 and not any(hasattr(m, n) for m in (a, u) for n in ('X', 'f', 'A'))",
            ),
        ],
    ),
    Case(
        "name_that_is_lost_has_a_fallback",
        {
            "~a": "X = 1\nY = 2\ndef f():\n    return 1\n",
            "~u": "import ~a\ntry:\n    from ~a import X\nexcept ImportError:\n    X = 'none'\ntry:\n    from ~a import f\nexcept ImportError:\n    f = None\nV = X\nW = getattr(~a, 'X', 0)\ndef late():\n    try:\n        from ~a import X\n    except ImportError:\n        return 'none'\n    return getattr(~a, 'X', 0) + X\nL = late()\n",
        },
        "import ~u as u",
        [
            Step(
                {"~a": "Y = 2\n"},
                "assert (u.X, u.V, u.W, u.f, u.L) == ('none', 'none', 0, None, 'none')",
            ),
            Step(
                {"~a": "Y = 2\nX = 4\ndef f():\n    return 3\n"},
                "assert (u.X, u.V, u.W, u.f(), u.L) == (4, 4, 4, 3, 8)",
            ),
        ],
    ),
    Case(
        "one_name_from_either_of_two_modules",
        {
            "~c": "FAST = True\n",
            "~a": "K = 1\ndef f():\n    return 'a'\n",
            "~b": "K = 2\ndef f():\n    return 'b'\n",
            "~u": "from ~c import FAST\nif FAST:\n    from ~a import f\n    import ~a as m\nelse:\n    from ~b import f\n    import ~b as m\nV = f()\nK = m.K\n",
        },
        "import ~u as u",
        [
            Step({"~a": [("'a'", "'aa'")]}, "assert u.V == 'aa'"),
            Step({"~c": "FAST = False\n"}, "assert (u.V, u.K) == ('b', 2)"),
            Step({"~b": [("'b'", "'bb'"), ("K = 2", "K = 9")]}, "assert (u.V, u.K) == ('bb', 9)"),
            Step({"~a": [("'aa'", "'a3'"), ("K = 1", "K = 5")]}, "assert (u.V, u.K) == ('bb', 9)"),
        ],
    ),
    Case(
        "module_under_an_alias_is_another",
        {
            "~a": "K = 1\n",
            "~b": "K = 2\n",
            "~u": "import ~a as m\nV = m.K\ndef f():\n    return m.K\nW = f()\n",
        },
        "import ~u as u",
        [Step({"~u": [("import ~a", "import ~b")]}, "assert (u.V, u.W, u.f()) == (2, 2, 2)")],
    ),
    Case(
        "one_more_import_of_a_module_that_is_there",
        {"~u": "import os\nimport xml\nV = [os.sep]\nW = [xml.__name__]\n"},
        "import ~u as u; V, W = u.V, u.W",
        [
            Step(
                {"~u": [("import xml\n", "import xml\nimport xml.dom\nimport os.path\n")]},
                "assert u.V is V and u.W is W",
            )
        ],
    ),
    Case(
        "function_of_the_name_of_its_module",
        {
            "~p/__init__": "from .train import train\n",
            "~p/train": "K = 1\ndef train():\n    return K\n",
            "~u": "from ~p import train\nV = train()\n",
        },
        "import ~u as u",
        [
            Step({"~p/train": [("return K", "return -K")]}, "assert u.V == -1"),
            Step({"~p/train": [("K = 1", "K = 7")]}, "assert u.V == -7"),
        ],
    ),
    Case(
        "function_that_is_held_under_another_name",
        {
            "~a": "def f(x=1):\n    return x\n",
            "~u": "import functools\nimport ~a\nfrom ~a import f\ndef more(h):\n    return lambda: h() + 10\nf = more(f)\ng = ~a.f\np = functools.partial(g, 3)\nc = functools.lru_cache(g)\nV = (f(), g(), p(), c())\n",
        },
        "import ~u as u; f, c = u.f, u.c",
        [
            Step(
                {"~a": [("return x", "return x + 1")]},
                "assert u.V == (12, 2, 4, 2) == (u.f(), u.g(), u.p(), u.c()) and u.f is f and u.c is c",
            ),
            Step(
                {"~a": "K = 5\ndef f(x=1):\n    return x + K\n"}, "assert u.V == (16, 6, 8, 6), u.V"
            ),
        ],
    ),
]
CASES = [*STARS, *NAMES]
