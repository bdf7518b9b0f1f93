"""Of pytest-xdist: all tests of one server go to one worker, which has it come up once.

Loaded with ``-p tests.by_server``, as `make system` does. By the names of tests, as only these
reach the process that shares them out. Marks of xdist's own ``loadgroup`` are lost with pytest 9.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_SERVERS = ("kubernetes", "slurm", "ray", "ssh")


def server_of(nodeid: str) -> str:
    """The server that a test needs: its parameter, or part of its file's name; else its file."""
    file, _, test = nodeid.partition("::")
    parameter = re.search(r"\[(\w+)\]$", test)
    if parameter is not None and parameter[1] in _SERVERS:
        return parameter[1]
    words = PurePosixPath(file).stem.split("_")
    return next((name for name in _SERVERS if name in words), file)


class _ByServer(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return server_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _ByServer(config, log)
