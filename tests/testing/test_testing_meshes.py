"""Meshes of in-process procs: what ``tests/actor/test_actor_meshes.py`` says of real ones."""

from tests.actor.test_actor_meshes import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
