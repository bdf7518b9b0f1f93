"""The ways in which a program may wait for ``sync_workspace``."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from monarch.actor import ProcMesh
from monarch_sync import SyncReport, Workspace, WorkspaceMissing
from tests.workspace.conftest import Project


def test_a_person_without_a_loop_types_get(project: Project, procs: ProcMesh) -> None:
    report = procs.sync_workspace(project.workspace).get(timeout=60)
    assert report.ok, report


def test_asyncio_run_takes_it_as_monarchs_coroutine(project: Project, procs: ProcMesh) -> None:
    report = asyncio.run(procs.sync_workspace(project.workspace))
    assert report.ok, report


def test_it_is_awaited_by_many_and_as_a_task(project: Project, procs: ProcMesh) -> None:
    async def main() -> list[SyncReport]:
        push = procs.sync_workspace(project.workspace)
        assert inspect.isawaitable(push)
        assert asyncio.iscoroutine(push)

        async def wait() -> SyncReport:
            return await push

        reports = await asyncio.gather(push, wait(), wait())
        return [*reports, await asyncio.wait_for(push, 60), await push, push.get()]

    reports = asyncio.run(main())
    assert reports[0].ok
    assert all(report is reports[0] for report in reports)


def test_a_wrong_word_is_told_where_it_was_typed(project: Project, procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="reload is one of auto, patch, respawn, off"):
        procs.sync_workspace(project.workspace, reload="always")
    with pytest.raises(TypeError, match=r"a workspace is Workspace\(dirs=\[...\]\), not 'x'"):
        procs.sync_workspace("x")  # type: ignore[arg-type]


def test_a_workspace_without_folders_empties_no_host(project: Project, procs: ProcMesh) -> None:
    assert project.sync(procs).ok
    with pytest.raises(ValueError, match="has no folders, so a push of it would delete all"):
        procs.sync_workspace(Workspace())
    with pytest.raises(ValueError, match="at least one"):
        procs.sync_workspace(Workspace.null(), conda=True)


def test_what_fails_is_raised_by_either(procs: ProcMesh) -> None:
    missing = Workspace(dirs={"/no/such/folder": ""})
    with pytest.raises(WorkspaceMissing, match="/no/such/folder"):
        procs.sync_workspace(missing).get(timeout=60)
    with pytest.raises(WorkspaceMissing, match="/no/such/folder"):
        asyncio.run(procs.sync_workspace(missing))
