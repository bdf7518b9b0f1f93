"""Two processes and a pipe: a folder that follows another, by monarch_sync alone.

    python examples/sync/mirror.py FROM TO [--watch]

The child keeps the copy and answers messages; the parent scans and pushes, with --watch at every
save. Any transport will do, as long as it carries bytes.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

from monarch_sync import HostView, Outgoing, Push, Replica, Scanner, Watcher, Workspace
from monarch_sync.messages import Commit, Message, decode, encode


def keep(link: Connection, parents_end: Connection, root: str) -> None:
    """Run the child: a replica that answers messages until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    parents_end.close()
    replica = Replica(root)
    while True:
        try:
            message, blobs = link.recv()
        except EOFError:
            break
        link.send(encode(replica.handle(decode(message), blobs)))
    replica.close()


class Follower:
    """The parent's end: knows the state of the copy, and updates it."""

    def __init__(self, workspace: Workspace, link: Connection) -> None:
        self.workspace = workspace
        self.scanner, self.view = Scanner(workspace), HostView()
        self.link = link
        self.generation = 0

    def ask(self, message: Message, blobs: tuple = ()) -> Message:
        self.link.send((encode(message), [bytes(blob) for blob in blobs]))
        return decode(self.link.recv())

    def push(self, touched: set[Path] | None = None) -> int:
        """Send all changed files to the follower, or none of them if that fails.

        Returns how many files were written, moved or deleted. Without ``touched``, all files are
        looked at.
        """
        scan = self.scanner.rescan(touched) if touched else self.scanner.scan()
        if scan.manifest == self.view.manifest:
            return 0
        self.generation += 1
        push = Push(
            self.workspace, scan.manifest, self.view, self.generation, self.scanner.contents
        )
        step = push.first()
        while isinstance(step, Outgoing):
            step = push.receive(self.ask(step.message, tuple(step.blobs)))
        push.committed(self.ask(Commit(self.generation)))
        return step.num_written + step.num_moved + step.num_deleted


def main() -> None:
    source, target, *options = sys.argv[1:]
    ours, theirs = Pipe()
    child = Process(target=keep, args=(theirs, ours, target))
    child.start()
    theirs.close()
    workspace = Workspace(dirs={source: ""})
    follower = Follower(workspace, ours)
    print(f"{follower.push()} files", flush=True)
    try:
        for touched in Watcher(workspace) if "--watch" in options else ():
            if num := follower.push(touched):
                print(f"{num} files", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        ours.close()
        child.join()


if __name__ == "__main__":
    main()
