"""libibverbs through pyverbs, which comes with rdma-core: Debian's package is python3-pyverbs."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Sequence
from typing import Any

from pyverbs import enums  # type: ignore[import-not-found]
from pyverbs.addr import GID, AHAttr, GlobalRoute  # type: ignore[import-not-found]
from pyverbs.cq import CQ  # type: ignore[import-not-found]
from pyverbs.device import Context, get_device_list  # type: ignore[import-not-found]
from pyverbs.mr import MR, DmaBufMR  # type: ignore[import-not-found]
from pyverbs.pd import PD  # type: ignore[import-not-found]
from pyverbs.pyverbs_error import PyverbsError  # type: ignore[import-not-found]
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # type: ignore[import-not-found]
from pyverbs.wr import SGE, SendWR  # type: ignore[import-not-found]

from monarch.rdma.ways.verbs.devices import best_gid, gids_of
from monarch.rdma.ways.verbs.library import READ, QueuePairInfo, WorkRequest, failing_by

_PORT = 1
_ACCESS = (
    enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE
)


class PyverbsLibrary:
    name = "pyverbs"

    def list_devices(self) -> list[str]:
        try:
            return sorted(device.name.decode() for device in get_device_list())
        except PyverbsError:  # So it says that the kernel has no RDMA.
            return []

    def open(self, name: str) -> PyverbsDevice:
        return PyverbsDevice(name)


class PyverbsKeys:
    def __init__(self, region: Any) -> None:
        self._region = region
        self.lkey: int = region.lkey
        self.rkey: int = region.rkey

    def close(self) -> None:
        self._region.close()


class PyverbsDevice:
    def __init__(self, name: str) -> None:
        self.name = name
        with failing_by(PyverbsError):
            self.context = Context(name=name)
            self.pd = PD(self.context)
            self.port = self.context.query_port(_PORT)

    def register(self, address: int, length: int) -> PyverbsKeys:
        with failing_by(PyverbsError):
            return PyverbsKeys(MR(self.pd, length, _ACCESS, address=address))

    def register_dma_buf(self, fd: int, offset: int, address: int, length: int) -> PyverbsKeys:
        with failing_by(PyverbsError):
            return PyverbsKeys(
                DmaBufMR(self.pd, length, _ACCESS, dmabuf=fd, offset=offset, iova=address)
            )

    def close(self) -> None:
        self.pd.close()
        self.context.close()

    def queue_pair(self, most_work: int) -> PyverbsQueuePair:
        with failing_by(PyverbsError):
            return PyverbsQueuePair(self, most_work)


class PyverbsQueuePair:
    def __init__(self, device: PyverbsDevice, most_work: int) -> None:
        self._device = device
        self._cq = CQ(device.context, 2 * most_work)
        cap = QPCap(max_send_wr=most_work, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0
        )
        self._qp = QP(device.pd, init, QPAttr(port_num=_PORT))
        self._gid_index, gid = best_gid(gids_of(device.name))
        self.info = QueuePairInfo(
            self._qp.qp_num, random.getrandbits(24), gid, device.port.lid, device.port.active_mtu
        )

    def connect(self, remote: QueuePairInfo) -> None:
        with failing_by(PyverbsError):
            self._connect(remote)

    def _connect(self, remote: QueuePairInfo) -> None:
        attributes = QPAttr(port_num=_PORT)
        attributes.qp_access_flags = _ACCESS
        attributes.pkey_index = 0
        self._qp.to_init(attributes)
        attributes = QPAttr(port_num=_PORT)
        attributes.path_mtu = min(remote.mtu, self.info.mtu)
        attributes.dest_qp_num, attributes.rq_psn = remote.number, remote.psn
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 16
        attributes.min_rnr_timer = 12
        attributes.qp_access_flags = _ACCESS
        gid = GID(str(ipaddress.IPv6Address(remote.gid).exploded))
        route = GlobalRoute(dgid=gid, sgid_index=self._gid_index)
        route.hop_limit = 255
        attributes.ah_attr = AHAttr(port_num=_PORT, is_global=1, gr=route, dlid=remote.lid)
        attributes.sq_psn = self.info.psn
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.timeout = 14
        self._qp.to_rts(attributes)

    def post(self, work: WorkRequest) -> None:
        kind = enums.IBV_WR_RDMA_READ if work.kind == READ else enums.IBV_WR_RDMA_WRITE
        request = SendWR(
            wr_id=work.number,
            opcode=kind,
            num_sge=1,
            sg=[SGE(work.local, work.length, work.lkey)],
            send_flags=enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(work.rkey, work.remote)
        with failing_by(PyverbsError):
            self._qp.post_send(request)

    def poll(self, most: int) -> Sequence[tuple[int, int]]:
        with failing_by(PyverbsError):
            _, completions = self._cq.poll(most)
        return [(completion.wr_id, completion.status) for completion in completions]

    def close(self) -> None:
        self._qp.close()
        self._cq.close()


LIBRARY = PyverbsLibrary()
