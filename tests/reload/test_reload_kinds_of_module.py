"""How modules take names from each other, hold state, and are made."""

from __future__ import annotations

import importlib
import logging
import py_compile
import sys
import sysconfig
import time

import pytest

from monarch_reload import NeedsRespawn, ReloadError

from .conftest import Project


def test_constant_through_every_kind_of_import(project: Project) -> None:
    (project.root / "pack" / "deep").mkdir(parents=True)
    project.write("pack", "from .base import C\nfrom . import base\nfrom .deep import leaf\n")
    project.write("pack.base", "C = 1\ndef f():\n    return C\n")
    project.write("pack.deep", "")
    project.write("pack.deep.leaf", "from ..base import C as CC, f\nL = CC + 1\nM = f() + 1\n")
    importlib.invalidate_caches()
    users = {
        "one": "import pack.base\nV = pack.base.C\n",
        "two": "import pack.base as b\nV = b.C\n",
        "three": "from pack import C\nV = C\n",
        "four": "from pack.base import *\nV = C\n",
        "five": "from pack import base\nV = base.C\n",
        "sixth": "import pack\nV = pack.C + 0 * pack.base.C\n",
        "seven": "def late():\n    from pack.base import C\n    return C\nV = late()\n",
        "nine": "from pack.base import f\nV = f()\n",
        "ten": "from three import V\n",
        "eleven": "import pack.base\nV = getattr(pack.base, 'C')\n",
    }
    loaded = {name: project.load(name, text) for name, text in users.items()}
    project.edit("pack.base", "C = 7\ndef f():\n    return C\n")
    leaf = sys.modules["pack.deep.leaf"]
    assert (sys.modules["pack"].C, leaf.L, leaf.M) == (7, 8, 8)
    assert {name: module.V for name, module in loaded.items()} == dict.fromkeys(users, 7)


def test_all_and_star_imports(project: Project) -> None:
    project.load("base_mod", "__all__ = ['A']\nA = 1\nB = 2\n")
    user = project.load("user_mod", "from base_mod import *\nS = A\n")
    assert not hasattr(user, "B")
    project.edit("base_mod", "__all__ = ['A', 'B']\nA = 1\nB = 2\n")
    assert user.B == 2
    with pytest.raises(ReloadError, match="name 'A' is not defined"):
        project.edit("base_mod", "__all__ = ['B']\nA = 5\nB = 3\n")
    assert (user.A, user.B, user.S) == (1, 2, 1)
    project.edit("base_mod", "__all__ = ['A', 'B']\nA = 5\nB = 3\n")
    assert (user.A, user.B, user.S) == (5, 3, 5)


def test_star_import_loses_a_name(project: Project) -> None:
    project.load("base_mod", "A = 1\nB = 2\n")
    user = project.load("user_mod", "from base_mod import *\n")
    project.edit("base_mod", "A = 3\n")
    assert user.A == 3
    assert not hasattr(user, "B")


def test_reexports_through_packages(project: Project) -> None:
    (project.root / "pack").mkdir()
    project.write("pack", "from .impl import f, K\n__all__ = ['f', 'K']\n")
    project.write("pack.impl", "K = 1\ndef f():\n    return 'old'\n")
    importlib.invalidate_caches()
    user = project.load("user_mod", "from pack import f, K\nimport pack\nV = pack.K\nW = f()\n")
    f = user.f
    project.edit("pack.impl", "K = 2\ndef g():\n    return 1\ndef f():\n    return 'new'\n")
    assert (user.K, user.V, user.W, f()) == (2, 2, "new", "new")
    project.edit("pack", "from .impl import f, g, K\n")
    assert sys.modules["pack"].g() == 1
    project.write("pack.impl", "K = 2\ndef f():\n    return 'third'\n")
    with pytest.raises(ReloadError, match="cannot import name 'g'"):
        project.reloader.reload()
    assert f() == "new"


def test_module_getattr_and_dir(project: Project) -> None:
    source = (
        "def __getattr__(name):\n    if name == 'lazy':\n        return 'old'\n"
        "    raise AttributeError(name)\ndef __dir__():\n    return ['lazy']\n"
    )
    module = project.load("lazy_mod", source)
    user = project.load(
        "user_mod", "from lazy_mod import lazy\nimport lazy_mod\nV = lazy_mod.lazy\n"
    )
    project.replace("lazy_mod", ("'old'", "'new'"))
    assert (module.lazy, user.V, user.lazy) == ("new", "new", "new")


def test_circular_imports(project: Project) -> None:
    project.write("left_mod", "import right_mod\nL = 1\ndef f():\n    return right_mod.R + L\n")
    project.write("right_mod", "import left_mod\nR = 10\ndef g():\n    return left_mod.L + R\n")
    left = importlib.import_module("left_mod")
    right = sys.modules["right_mod"]
    project.prepare(
        left_mod="import right_mod\nL = 2\ndef f():\n    return right_mod.R - L\nX = 0\n",
        right_mod="import left_mod\nR = 20\ndef g():\n    return left_mod.L - R\n",
    ).commit()
    assert (left.f(), right.g()) == (18, -18)


def test_registry_filled_by_a_decorator(project: Project) -> None:
    project.load(
        "reg_mod",
        "TOOLS = {}\nORDER = []\ndef tool(name):\n    def deco(f):\n"
        "        TOOLS[name] = f\n        ORDER.append(name)\n"
        "        return f\n    return deco\n",
    )
    source = (
        "from reg_mod import tool\n@tool('a')\ndef a():\n    return 'old a'\n"
        "@tool('b')\ndef b():\n    return 'old b'\n"
    )
    user = project.load("user_mod", source)
    tools = sys.modules["reg_mod"].TOOLS
    a = tools["a"]
    project.replace("user_mod", ("old a", "new a"))
    assert (tools["a"](), tools["a"] is a is user.a) == ("new a", True)
    project.replace("user_mod", ("@tool('b')", "@tool('bee')"), ("old b", "new b"))
    assert (tools["bee"](), tools.keys()) == ("new b", {"a", "bee"})
    project.edit(
        "user_mod", project.path("user_mod").read_text() + "@tool('c')\ndef c():\n    return 'c'\n"
    )
    assert (tools["c"](), tools["a"]()) == ("c", "new a")


def test_registry_entry_of_a_removed_definition_goes(project: Project) -> None:
    project.load("reg_mod", "TOOLS = {}\ndef tool(f):\n    TOOLS[f.__name__] = f\n    return f\n")
    source = "from reg_mod import tool\n@tool\ndef a():\n    return 1\n"
    project.load("user_mod", source + "@tool\ndef b():\n    return 2\n")
    tools = sys.modules["reg_mod"].TOOLS
    report = project.edit("user_mod", source)
    assert tools.keys() == {"a"}
    report.undo()
    assert (tools.keys(), tools["b"]()) == ({"a", "b"}, 2)


def test_loggers_keep_their_handlers(project: Project) -> None:
    source = (
        "import logging\nlog = logging.getLogger(__name__)\n"
        "log.setLevel('INFO')\ndef f():\n    return log\n"
    )
    module = project.load("log_mod", source)
    handler = logging.NullHandler()
    module.log.addHandler(handler)
    log = module.log
    project.replace("log_mod", ("'INFO'", "'DEBUG'"))
    assert (module.f() is log, log.level, log.handlers) == (True, logging.DEBUG, [handler])
    log.removeHandler(handler)


def test_type_checking_and_conditional_definitions(project: Project) -> None:
    source = """
from __future__ import annotations
import sys
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Nothing
FAST = False
if FAST:
    def f() -> Nothing:
        return 'fast'
else:
    def f() -> Nothing:
        return 'slow'
try:
    import not_installed_at_all
except ImportError:
    not_installed_at_all = None
"""
    module = project.load("cond_mod", source)
    f = module.f
    project.replace("cond_mod", ("import Nothing", "import Nothing, More"), ("'slow'", "'slower'"))
    assert f() == "slower"
    project.replace("cond_mod", ("FAST = False", "FAST = True"))
    assert (module.f(), f()) == ("fast", "fast")


@pytest.mark.long
def test_error_at_every_place_of_a_module(project: Project) -> None:
    lines = [
        "import os",
        "C = 1",
        "LIST = []",
        "def f():",
        "    return C",
        "class A:",
        "    x = C",
        "    def m(self):",
        "        return self.x",
        "D = f() + 1",
        "LIST.append(D)",
        "a = A()",
    ]
    module = project.load("err_mod", "\n".join(lines) + "\n")
    before = dict(vars(module))
    changed = [line.replace("C = 1", "C = 2") for line in lines]
    for bad in [
        "raise RuntimeError('boom')",
        "1 / 0",
        "def (",
        "undefined_name",
        "import not_there_at_all",
        "assert False",
        "C.nothing",
    ]:
        for place in (1, 2, 5, 7, 9, 10, 11, 12):
            indent = "    " if place in (7,) else ""
            if place in (5,) and not bad.startswith("def"):
                continue
            text = [*changed[:place], indent + bad, *changed[place:]]
            project.write("err_mod", "\n".join(text) + "\n")
            if place == 9 - 1:
                continue
            with pytest.raises(ReloadError):
                project.reloader.reload()
            assert dict(vars(module)) == before
            assert (module.f(), module.LIST, module.a.m()) == (1, [2], 1)


def test_a_new_import_that_fails_leaves_no_module_behind(project: Project) -> None:
    module = project.load("user_mod", "x = 1\n")
    project.write("helper_mod", "STATE = []\n")
    project.write("broken_mod", "import helper_mod\nraise ValueError('broken')\n")
    project.write("user_mod", "import broken_mod\nx = 2\n")
    with pytest.raises(ReloadError, match="broken"):
        project.reloader.reload()
    assert module.x == 1
    assert not {"broken_mod", "helper_mod"} & sys.modules.keys()
    project.write("broken_mod", "import helper_mod\nok = 1\n")
    project.reloader.reload()
    assert (module.x, module.broken_mod.ok) == (2, 1)


@pytest.mark.parametrize(
    ("cookie", "encoding", "bom"),
    [
        ("# -*- coding: latin-1 -*-\n", "latin-1", b""),
        ("# coding: cp1252\n", "cp1252", b""),
        ("", "utf-8", b"\xef\xbb\xbf"),
        ("", "utf-8", b""),
    ],
)
def test_encodings(project: Project, cookie: str, encoding: str, bom: bytes) -> None:
    path = project.root / "enc_mod.py"
    source = cookie + "NAME = 'é'\ndef f():\n    return 'ü'\ndef g():\n    return 'ß'\nLOG = []\n"
    path.write_bytes(bom + source.encode(encoding))
    module = importlib.import_module("enc_mod")
    log, f = module.LOG, module.f
    path.write_bytes(bom + source.replace("ü", "ö").encode(encoding))
    report = project.reloader.reload()
    assert (f(), module.NAME, module.LOG is log, report.functions) == (
        "ö",
        "é",
        True,
        ["enc_mod.f"],
    )
    path.write_bytes(bom + source.replace("'é'", "'è'").encode(encoding))
    project.reloader.reload()
    assert (f(), module.NAME, module.LOG is log) == ("ü", "è", True)


def test_line_endings_and_no_final_newline(project: Project) -> None:
    path = project.root / "crlf_mod.py"
    path.write_bytes(b"LOG = []\r\ndef f():\r\n    return 1\r\n")
    module = importlib.import_module("crlf_mod")
    log, f = module.LOG, module.f
    for text, expected in [
        (b"LOG = []\ndef f():\n    return 1\n", 1),
        (b"LOG = []\r\ndef f():\r\n    return 2", 2),
        (b"\x0cLOG = []\n\n\ndef f():\n\treturn 3", 3),
    ]:
        path.write_bytes(text)
        project.reloader.reload()
        assert (f(), module.LOG is log) == (expected, True)


def test_extension_module_and_bytecode_only_module(project: Project) -> None:
    project.write("pyc_mod", "x = 1\n")
    source = project.path("pyc_mod")
    compiled = source.with_suffix(".pyc")
    py_compile.compile(str(source), cfile=str(compiled))
    source.unlink()
    importlib.invalidate_caches()
    module = importlib.import_module("pyc_mod")
    assert project.reloader.changed_paths() == []
    source.write_text("x = 2\n")
    py_compile.compile(str(source), cfile=str(compiled))
    source.unlink()
    with pytest.raises(NeedsRespawn, match="bytecode"):
        project.reloader.reload()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    fake = project.root / f"ext_mod{suffix}"
    fake.write_bytes(b"\x7fELF")
    made = type(sys)("ext_mod")
    made.__file__ = str(fake)
    sys.modules["ext_mod"] = made
    project.reloader.add_root(project.root)
    calm = project.load("calm_mod", "x = 1\n")
    fake.write_bytes(b"\x7fELF2")
    project.write("calm_mod", "x = 2\n")
    with pytest.raises(NeedsRespawn, match="extension"):
        project.reloader.reload([fake, project.path("calm_mod")])
    assert (calm.x, module.x) == (1, 1)


@pytest.mark.long
def test_ten_thousand_lines(project: Project) -> None:
    parts = [
        f"class K{n}:\n    limit = {n}\n    def m(self, x):\n"
        f"        y = x + {n}\n        return y\n"
        f"\ndef f{n}(a, b=1):\n    c = a + b\n    return c * {n}\n"
        for n in range(1000)
    ]
    module = project.load("long_mod", "\n".join(parts))
    k, f = module.K500(), module.f500
    started = time.thread_time()
    project.replace("long_mod", ("return c * 500\n", "return c * -500\n"))
    narrow = time.thread_time() - started
    assert f(1) == -1000
    started = time.thread_time()
    project.replace("long_mod", ("limit = 500\n", "limit = -500\n"))
    wide = time.thread_time() - started
    assert k.limit == -500
    assert (narrow < 5, wide < 5) == (True, True)


def test_main_script(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    module = project.load(
        "script_mod",
        "RAN = []\ndef f():\n    return 1\nif __name__ == '__main__':\n    RAN.append(f())\n",
    )
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__name__ = "__main__"
    project.reloader.add_root(project.root)
    project.replace("script_mod", ("return 1", "return 2"))
    assert (module.f(), module.RAN) == (2, [])


def test_names_written_from_outside_stay(project: Project) -> None:
    module = project.load(
        "state_mod", "CONFIG = {'lr': 1}\nFLAG = False\nCOUNT = 0\ndef f():\n    return FLAG\n"
    )
    module.CONFIG["lr"] = 5
    module.FLAG = True
    module.EXTRA = 1
    project.replace("state_mod", ("return FLAG", "return not FLAG"))
    assert (module.f(), module.CONFIG, module.EXTRA) == (False, {"lr": 5}, 1)
    project.replace("state_mod", ("FLAG = False", "FLAG = None"))
    assert (module.FLAG, module.CONFIG) == (None, {"lr": 5})


def test_reload_keep_in_its_forms(project: Project) -> None:
    module = project.load(
        "keep_mod", "__reload_keep__ = ['CACHE', 'N']\nCACHE = {}\nN = 1\nM = 1\n"
    )
    cache = module.CACHE
    cache["k"] = 1
    project.edit(
        "keep_mod", "__reload_keep__ = ['CACHE', 'N']\nCACHE = {'fresh': 1}\nN = 2\nM = 2\n"
    )
    assert (module.CACHE is cache, module.N, module.M) == (True, 1, 2)
    project.edit("keep_mod", "CACHE = {'fresh': 1}\nN = 2\nM = 2\n")
    assert (module.CACHE is cache, module.N) == (True, 1)  # those statements did not change
    project.edit("keep_mod", "CACHE = {'fresh': 2}\nN = 3\nM = 2\n")
    assert (module.CACHE, module.N) == ({"fresh": 2}, 3)


def test_side_effects_outside_of_modules(project: Project) -> None:
    source = "import os\nos.environ['RELOAD_TEST'] = 'old'\nx = 1\n"
    project.load("env_mod", source)
    import os

    try:
        os.environ["RELOAD_TEST"] = "live"
        project.replace("env_mod", ("x = 1", "x = 2"))
        assert os.environ["RELOAD_TEST"] == "live"
        project.replace("env_mod", ("'old'", "'new'"))
        assert os.environ["RELOAD_TEST"] == "new"
    finally:
        del os.environ["RELOAD_TEST"]


def test_thread_lock_and_threadlocal_state(project: Project) -> None:
    source = (
        "import threading\nLOCK = threading.Lock()\nLOCAL = threading.local()\n"
        "def f():\n    with LOCK:\n        return getattr(LOCAL, 'x', 'old')\n"
    )
    module = project.load("lock_mod", source)
    lock, module.LOCAL.x = module.LOCK, "mine"
    with lock:
        project.replace(
            "lock_mod", ("'old'", "'new'"), ("import threading\n", "import threading\nK = 1\n")
        )
    assert (module.LOCK is lock, module.f()) == (True, "mine")


def test_context_variables_and_singletons(project: Project) -> None:
    source = (
        "import contextvars\nVAR = contextvars.ContextVar('v', default=0)\n"
        "class Service:\n    port = 1\n    def go(self):\n"
        "        return self.port\nservice = Service()\n"
    )
    module = project.load("ctx_mod", source)
    service, var = module.service, module.VAR
    service.seen = 1
    project.replace("ctx_mod", ("port = 1", "port = 2"))
    assert (module.VAR is var, module.service is service, service.go(), service.seen) == (
        True,
        True,
        2,
        1,
    )


def test_module_replaced_in_sys_modules(project: Project) -> None:
    source = (
        "import sys\nclass Facade:\n    value = 1\n    def f(self):\n"
        "        return 'old'\nsys.modules[__name__] = Facade()\n"
    )
    project.write("facade_mod", source)
    facade = importlib.import_module("facade_mod")
    project.write("facade_mod", source.replace("'old'", "'new'"))
    with pytest.raises(NeedsRespawn, match="put another object"):
        project.reloader.reload()
    assert facade.f() == "old"


def test_module_class_and_doc(project: Project) -> None:
    module = project.load("doc_mod", '"""old doc"""\n__version__ = "1"\nx: int = 1\n')
    project.edit("doc_mod", '"""new doc"""\n__version__ = "2"\nx: str = "s"\n')
    assert (module.__doc__, module.__version__, module.__annotations__) == (
        "new doc",
        "2",
        {"x": str},
    )


@pytest.mark.long
def test_same_edit_back_and_forth(project: Project) -> None:
    one = "C = 1\nclass A:\n    x = C\n    def m(self):\n        return C\nD = A()\n"
    two = one.replace("C = 1", "C = 2").replace("return C", "return -C")
    module = project.load("flip_mod", one)
    d = module.D
    for _ in range(5):
        project.edit("flip_mod", two)
        assert (module.A.x, d.m(), module.A().m()) == (2, -2, -2)
        project.edit("flip_mod", one)
        assert (module.A.x, d.m(), module.A().m()) == (1, 1, 1)


def test_module_becomes_package(project: Project) -> None:
    module = project.load("shape_mod", "def f():\n    return 'old'\n")
    project.path("shape_mod").unlink()
    (project.root / "shape_mod").mkdir()
    project.write("shape_mod", "def f():\n    return 'new'\n")
    report = project.reloader.reload()
    assert report.verdicts["shape_mod"].action == "patch"
    assert module.f() == "new"
    assert module.__path__ == [str(project.root / "shape_mod")]
    report.undo()
    assert module.f() == "old"
    assert not hasattr(module, "__path__")


def test_submodule_added_to_a_package(project: Project) -> None:
    (project.root / "pack").mkdir()
    project.write("pack", "from . import one\n")
    project.write("pack.one", "V = 1\n")
    importlib.invalidate_caches()
    pack = importlib.import_module("pack")
    project.write("pack.two", "from .one import V\nW = V + 1\n")
    project.edit("pack", "from . import one, two\n")
    assert pack.two.W == 2
    project.edit("pack.one", "V = 5\n")
    assert pack.two.W == 6
