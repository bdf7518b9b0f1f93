"""Controllers of in-process actors: ``tests/actor/test_actor_controllers.py``, in a world."""

from tests.actor.test_actor_controllers import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403
