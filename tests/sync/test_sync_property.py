"""For any trees: what stands in the author's folder stands on the host after a push."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_sync import Replica
from tests.sync.author import Author
from tests.sync.trees import Tree, plant, read_tree, trees


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(states=st.lists(trees, min_size=2, max_size=4), reopens=st.booleans())
def test_any_tree_becomes_any_other(states: list[Tree], reopens: bool) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder, root = Path(where, "project"), Path(where, "replica")
        folder.mkdir()
        author = Author(folder, Replica(root))
        for state in (*states, states[0]):
            plant(folder, state)
            links_out = author.scanner.scan().problems
            if not links_out:
                author.push()
                assert read_tree(root) == read_tree(folder)
            if reopens:
                author.replica.close()
                author.replica = Replica(root)
        author.replica.close()
