"""Which tests `make system` has one worker run."""

from __future__ import annotations

import pytest

from tests.by_server import server_of


@pytest.mark.parametrize(
    ("nodeid", "server"),
    [
        ("tests/job/test_job_contract.py::test_it[kubernetes]", "kubernetes"),
        (
            "tests/job/test_job_contract.py::test_it[kubernetes_fake]",
            "tests/job/test_job_contract.py",
        ),
        ("tests/job/test_job_kubernetes.py::test_it", "kubernetes"),
        ("tests/job/test_job_slurm_real.py::test_it[options0-words]", "slurm"),
        ("tests/examples/test_examples_jobs.py::test_it[slurm]", "slurm"),
        ("tests/job/test_job_links.py::test_it[h1]", "tests/job/test_job_links.py"),
    ],
)
def test_tests_of_one_server_go_together(nodeid: str, server: str) -> None:
    assert server_of(nodeid) == server
