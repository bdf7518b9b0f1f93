"""Which code runs on a host, as processes tell each other."""

from __future__ import annotations

import msgspec

from monarch.wire.address import Uid


class HostCode(msgspec.Struct, frozen=True, array_like=True):
    """The last switch of a host: the generation of the workspace, and its digest.

    Hosts of one ``family`` have the same workspace and should run one state of it.
    """

    host: Uid
    generation: int
    digest: str
    family: str
