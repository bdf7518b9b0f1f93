"""Failures of in-process procs: ``tests/runtime/test_runtime_failures.py``, in a world."""

from tests.runtime.test_runtime_failures import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403

# About process groups, connections of a process's own, and the template process.
del test_what_a_proc_started_dies_with_it  # noqa: F821
del test_a_proc_that_has_closed_its_own_connections_ends_at_once  # noqa: F821
del test_a_template_that_dies_takes_its_procs_with_it_and_is_replaced  # noqa: F821
