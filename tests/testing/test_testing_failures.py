"""Failures of in-process procs: ``tests/runtime/test_runtime_failures.py``, in a world."""

from tests.runtime.test_runtime_failures import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
