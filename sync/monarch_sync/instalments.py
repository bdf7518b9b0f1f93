"""Instalments: send a first state to hosts while the author still scans the rest of it.

So a host writes one part while the author reads the next. They are only an optimisation: a host
that has not kept them says so when it gets the stage, and asks for the missing contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.messages import Instalment, Message, Need, encode
from monarch_sync.push import MAX_UNASKED_BYTES, HostView, PushMessage
from monarch_sync.scanning.contents import Contents
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.manifest import Manifest

_PART_BYTES = 2 << 20


class Instalments:
    """Sends a first state in parts, before the scan has ended, to hosts to which nothing was pushed
    yet (``views``). ``send`` sends a part to all hosts; a part has about ``part_bytes`` of content.

    Pass ``add`` to ``Scanner.scan``, which calls it for each entry; pass the scan's manifest to
    ``end``. A ``Push`` to these views then sends only what the parts have not brought.
    """

    def __init__(
        self,
        contents: Contents,
        views: Sequence[HostView],
        generation: int,
        send: Callable[[PushMessage], None],
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self._contents = contents
        self._views = views
        self._generation = generation
        self._send = send
        self._part_bytes = part_bytes
        self._is_near = all(view.is_near for view in views)
        #: The entries of the next part, and its files by content.
        self._entries: list[Entry] = []
        self._files: dict[bytes, Entry] = {}
        #: Bytes of content in the next part.
        self._num_bytes = 0
        #: Bytes of content, and the entries, of the parts so far.
        self._num_sent = 0
        self._sent: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry to the next instalment. Links and large files are left for the stage."""
        if entry.is_file:
            if entry.size >= LARGE_BYTES or self._num_sent > MAX_UNASKED_BYTES:
                return
            self._files[entry.digest] = entry
            self._num_bytes += entry.size
        elif not entry.is_dir:
            return
        self._entries.append(entry)
        if self._num_bytes >= self._part_bytes:
            self._send_part()

    def end(self, manifest: Manifest) -> None:
        """Send the last instalment; ``manifest`` is the state that the scan found in the end."""
        if self._files:
            self._send_part()
        if self._sent:
            # The sent entries, as a manifest that shares as many folders as possible with the
            # state.
            unsent = [entry.path for entry in manifest if entry.path not in self._sent]
            changed = [entry for path, entry in self._sent.items() if manifest.get(path) != entry]
            ahead = manifest.replace(changed, unsent) if changed or unsent else manifest
            for view in self._views:
                view.ahead = ahead

    @staticmethod
    def answered(view: HostView, reply: Message) -> None:
        """Take in a host's answer to an instalment. Call it after `end` and before the push.

        If the host has dropped the instalment, the push to this host sends the whole state.
        """
        if reply != Need([]):
            view.ahead = None

    def _send_part(self) -> None:
        blobs = list(self._contents.packed(list(self._files.values()), is_near=self._is_near))
        rows = [entry.to_row() for entry in self._entries]
        message = Instalment(
            self._generation, self._contents.author, rows, [blob for blob, _ in blobs]
        )
        self._send(PushMessage(message, [content for _, content in blobs]))
        num_bytes = len(encode(message)) + sum(len(content) for _, content in blobs)
        for view in self._views:
            view.bytes_ahead += num_bytes
        self._sent.update((entry.path, entry) for entry in self._entries)
        self._num_sent += self._num_bytes
        self._num_bytes = 0
        self._entries, self._files = [], {}
