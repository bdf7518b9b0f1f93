"""Instalments: a first state on its way to hosts while the author still looks at the rest of it.

So a host writes one part while the author reads the next. Nothing depends on them: a stage says
what there is to be, and whatever the host lacks of that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_sync.digest import LARGE_BYTES
from monarch_sync.entry import Entry
from monarch_sync.messages import Instalment, encode
from monarch_sync.push import MAX_UNASKED_BYTES, HostView, Outgoing, author_name
from monarch_sync.scanning.contents import Contents

__all__ = ["Instalments"]

_BYTES = 1 << 20


class Instalments:
    """To hosts of which one ``view`` or more says that they have nothing; ``send`` sends one.

    `add` is for `Scanner.scan`, to which it is told all that is found; `end` sends the last.
    """

    def __init__(
        self, contents: Contents, views: list[HostView], generation: int,
        send: Callable[[Outgoing], None],
    ) -> None:  # fmt: skip
        self._contents = contents
        self._views = views
        self._generation = generation
        self._send = send
        self._is_near = all(view.is_near for view in views)
        self._entries: list[Entry] = []
        self._files: dict[bytes, Entry] = {}
        self._num_bytes = self._num_sent = 0

    def add(self, entry: Entry) -> None:
        """One more entry. Links, and large files, come with the stage or after it."""
        if entry.is_file:
            if entry.size >= LARGE_BYTES or self._num_sent > MAX_UNASKED_BYTES:
                return
            self._files[entry.digest] = entry
            self._num_bytes += entry.size
        elif not entry.is_dir:
            return
        self._entries.append(entry)
        if self._num_bytes >= _BYTES:
            self.end()

    def end(self) -> None:
        """Send what is left."""
        if not self._files:
            return
        made = list(self._contents.packed(list(self._files.values()), is_near=self._is_near))
        message = Instalment(
            self._generation, author_name(), [entry.to_row() for entry in self._entries],
            [blob for blob, _ in made],
        )  # fmt: skip
        self._send(Outgoing(message, [content for _, content in made]))
        num_bytes = len(encode(message)) + sum(len(content) for _, content in made)
        for view in self._views:
            view.held.update(self._files)
            view.bytes_ahead += num_bytes
        self._num_sent += self._num_bytes
        self._num_bytes = 0
        self._entries, self._files = [], {}
