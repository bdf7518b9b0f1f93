"""Which files a push changes, by the paths that each process sees."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

from monarch.net.identifiers import new_uid
from monarch.net.machine import machine_id
from monarch.runtime.workspace.packages.host_environment import import_place
from monarch.runtime.workspace.pushing.hosts_in_push import HostInPush
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.sharing import HERE
from monarch.runtime.workspace.reload_plan import FileChange, ReloadPlan
from monarch.wire.address import Uid
from monarch_sync.scanning.contents import author_name
from monarch_sync.tree.entry import from_wire
from monarch_sync.tree.manifest import Manifest


def plan_of(
    memory: Memory,
    manifest: Manifest,
    hosts: Sequence[HostInPush],
    *,
    roots: Mapping[Uid, str],
    packages: Mapping[Uid, Sequence[tuple[str, str]]],
    behind: Sequence[Uid],
    mode: str,
    local_replicas: LocalReplicas,
) -> tuple[ReloadPlan, list[str]]:
    """Return the plan for the owners of procs, and the changed files, for the report.

    ``hosts`` take part in the push; ``roots`` are their replicas. ``packages`` are the files of
    packages that change there, and ``local_replicas`` the replicas on the author's own host.
    """
    folders = memory.workspace.folders
    plan = ReloadPlan(memory.generation + 1, manifest.digest.hex(), mode, attempt=new_uid())
    changed: set[str] = set()
    by_uid = {host.uid: host for host in hosts}
    own_changes = _own_changes(memory.run, manifest)
    sharing = memory.sharing
    for host in hosts:
        plan.covers.append(host.uid)
        writer = by_uid.get(host.writer, host)
        push = writer.push
        root, state = sharing.roots.get(host.uid, ""), sharing.states.get(host.uid, "")
        unapplied = _changes_since(memory.outdated.get(host.uid), manifest)
        if push is not None and push.staged is not None:
            staged = [(from_wire(path), from_wire(source)) for path, source in push.files()]
            places = {sharing.states.get(writer.uid, ""): state, roots[writer.uid]: root}
            plan.hosts[host.uid] = [
                FileChange(os.path.join(parent, path), _seen_from(source, places, root))
                for parent, files in ((root, staged), (state, packages[writer.uid]))
                for path, source in files
            ]
            changed.update(path for path, _ in staged)
            unapplied = {path: unapplied[path] for path in unapplied.keys() - dict(staged).keys()}
        elif host.writer == HERE and root:
            plan.hosts[host.uid] = _in_place(root, {path: path in manifest for path in own_changes})
        elif not unapplied:
            continue
        # The host shows these already, but no process there has loaded them.
        plan.hosts.setdefault(host.uid, []).extend(_in_place(root, unapplied))
        plan.paths[host.uid] = [import_place(root, state, f.remote) for f in folders]
    plan.author, plan.author_machine = author_name(), machine_id()
    plan.folders = [folder.remote for folder in folders]
    plan.behind = list(behind)
    plan.local_paths = [str(folder.local) for folder in folders]
    plan.family = _family(plan.author_machine, plan.local_paths)
    plan.local = [
        FileChange(str(local), str(local) if path in manifest else "")
        for path in own_changes
        for local in list(memory.workspace.locate(path))[:1]
    ]
    plan.local_paths += local_replicas.import_folders
    plan.local += [
        FileChange(source, str(local) if path in manifest else "")
        for path in own_changes
        for local in list(memory.workspace.locate(path))[:1]
        for source in local_replicas.places(path)
    ]
    # An author that pushes for the first time does not know what is new here; hosts do.
    is_first_here = memory.last is None and any(host.is_staged for host in hosts)
    if not is_first_here:
        changed.update(own_changes if mode != "off" else _own_changes(memory.last, manifest))
    return plan, sorted(changed)


def _family(machine: str, paths: Sequence[str]) -> str:
    """Return a name for a workspace, which is the same for each push of these folders from this
    machine. No other author's workspace has the same name.
    """
    text = "\0".join([machine, *paths])
    return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _seen_from(path: str, folders: Mapping[str, str], root: str) -> str:
    """Return the path at which a host sees a file that the writer of the folder reported as
    ``path``.

    ``folders`` maps the writer's folders to the host's folders, as a shared folder may be mounted
    elsewhere. A path in none of them is relative to ``root``; "" stays "".
    """
    for theirs, ours in folders.items():
        if theirs and path.startswith(f"{theirs}/"):
            return ours + path[len(theirs) :]
    return path and os.path.join(root, path)


def _in_place(root: str, paths: Mapping[str, bool]) -> list[FileChange]:
    """Return the changes of files that are already at their final path below ``root``, or no longer
    exist. ``paths`` says for each file whether it exists.
    """
    files = [(os.path.join(root, relative), is_there) for relative, is_there in paths.items()]
    return [FileChange(path, path if is_there else "") for path, is_there in files]


def _changes_since(state: Manifest | None, manifest: Manifest) -> dict[str, bool]:
    """Return the files that have changed since ``state``, and whether they exist now.

    Empty if ``state`` is None.
    """
    if state is None:
        return {}
    changes = ((old, new or old) for _, old, new in manifest.changes(state))
    return {
        entry.path: entry.path in manifest
        for old, entry in changes
        if entry is not None
        and entry.is_file
        and (old is entry or old is None or old.digest != entry.digest)
    }


def _own_changes(last: Manifest | None, manifest: Manifest) -> list[str]:
    """Return the files that changed here since the last push; at the first push, all Python
    files."""
    if last is None:
        return [entry.path for entry in manifest if entry.path.endswith(".py")]
    return sorted(_changes_since(last, manifest))
