"""libibverbs through the package ``ibverbs``, which opens the installed version of the library."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ibverbs  # type: ignore[import-not-found]

from monarch.rdma.ways.verbs.devices import best_gid, gids_of
from monarch.rdma.ways.verbs.library import READ, QueuePairInfo, WorkRequest, failing_by

_PORT = 1
_ACCESS = (
    ibverbs.AccessFlags.LOCAL_WRITE
    | ibverbs.AccessFlags.REMOTE_READ
    | ibverbs.AccessFlags.REMOTE_WRITE
)


class IbverbsLibrary:
    name = "ibverbs"

    def list_devices(self) -> list[str]:
        try:
            return sorted(_text(device.name) for device in ibverbs.get_device_list())
        except OSError:  # So it says that the kernel has no RDMA.
            return []

    def open(self, name: str) -> IbverbsDevice:
        return IbverbsDevice(name)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


class IbverbsDevice:
    def __init__(self, name: str) -> None:
        self.name = name
        with failing_by((OSError, IndexError)):
            devices = [d for d in ibverbs.get_device_list() if _text(d.name) == name]
            self.context = devices[0].open()
            self.pd = self.context.alloc_pd()
            self.port = self.context.query_port(_PORT)

    def register(self, address: int, length: int) -> Any:
        with failing_by(OSError):
            return self.pd.reg_mr(address, length, _ACCESS)

    def register_dma_buf(self, fd: int, offset: int, address: int, length: int) -> Any:
        with failing_by(OSError):
            return self.pd.reg_dmabuf_mr(offset, length, address, fd, _ACCESS)

    def close(self) -> None:
        self.pd.close()
        self.context.close()

    def queue_pair(self, most_work: int) -> IbverbsQueuePair:
        with failing_by(OSError):
            return IbverbsQueuePair(self, most_work)


class IbverbsQueuePair:
    def __init__(self, device: IbverbsDevice, most_work: int) -> None:
        self._cq = device.context.create_cq(2 * most_work)
        init = ibverbs.QPInitAttr(
            send_cq=self._cq, recv_cq=self._cq, qp_type=ibverbs.QPType.RC, max_send_wr=most_work
        )
        self._qp = device.pd.create_qp(init)
        self._gid_index, gid = best_gid(gids_of(device.name))
        self.info = QueuePairInfo(
            self._qp.qp_num,
            random.getrandbits(24),
            gid,
            int(device.port.lid),
            int(device.port.active_mtu),
        )

    def connect(self, remote: QueuePairInfo) -> None:
        other = ibverbs.QPInfo(remote.number, remote.psn, remote.lid, remote.gid, _PORT, remote.mtu)
        with failing_by(OSError):
            ibverbs.connect_rc(
                self._qp,
                other,
                port=_PORT,
                sgid_index=self._gid_index,
                access=_ACCESS,
                local_psn=self.info.psn,
            )

    def post(self, work: WorkRequest) -> None:
        kind = ibverbs.WROpcode.RDMA_READ if work.kind == READ else ibverbs.WROpcode.RDMA_WRITE
        with failing_by(OSError):
            self._qp.post_send(
                ibverbs.SendWR(
                    wr_id=work.number,
                    sg_list=[ibverbs.SGE(work.local, work.length, work.lkey)],
                    opcode=kind,
                    send_flags=ibverbs.SendFlags.SIGNALED,
                    remote_addr=work.remote,
                    rkey=work.rkey,
                )
            )

    def poll(self, most: int) -> Sequence[tuple[int, int]]:
        with failing_by(OSError):
            return [(done.wr_id, int(done.status)) for done in self._cq.poll(most)]

    def close(self) -> None:
        self._qp.close()
        self._cq.close()


LIBRARY = IbverbsLibrary()
