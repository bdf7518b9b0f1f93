"""Meshes of in-process procs: what ``tests/actor/test_actor_meshes.py`` says of real ones."""

from tests.actor.test_actor_meshes import *  # noqa: F403
from tests.testing.a_world import *  # noqa: F403

# Counts processes.
del test_a_proc_mesh_has_the_dimensions_that_were_asked_for  # noqa: F821
# The working directory belongs to the process.
del test_procs_start_in_the_folder_of_the_client  # noqa: F821
