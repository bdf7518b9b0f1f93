"""Python's own modules are none of the project's, though its folder holds Python."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from monarch_reload import Reloader


def test_the_standard_library_is_not_the_projects(tmp_path: Path) -> None:
    above = os.path.commonpath([os.path.realpath(sysconfig.get_path("stdlib")), os.sep])
    reloader = Reloader([above])  # as where a login begins in a home that Python lies in
    try:
        names = {name for name, _ in reloader.loaded()}
        assert __name__ in names
        assert names.isdisjoint({"json", "asyncio", "collections", "threading", "subprocess"})
    finally:
        reloader.close()
