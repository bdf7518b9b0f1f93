"""Spawning of in-process procs: ``tests/actor/test_actor_spawning.py``, in a world."""

from tests.actor.test_actor_spawning import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
