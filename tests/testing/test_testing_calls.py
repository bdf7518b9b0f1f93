"""Calls to in-process procs: all that ``tests/actor/test_actor_calls.py`` says of real ones."""

from tests.actor.test_actor_calls import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
