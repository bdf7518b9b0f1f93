"""Wrong calls of in-process actors: ``tests/actor/test_actor_wrong_calls.py``, in a world."""

from tests.actor.test_actor_wrong_calls import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
