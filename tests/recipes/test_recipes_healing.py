"""What a group heals from: read from where it lies, else fetched over HTTP; the same in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from monarch.actor import context
from monarch.rdma import RDMAAction, RDMABuffer, RemoteMemoryError
from monarch.rdma.memory.registry import registry
from tests.support import wait_for

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from monarch_recipes.fingerprint import state_of, sums_of  # noqa: E402
from monarch_recipes.replicas.torchft_cures import ReachableTransport  # noqa: E402

TIMEOUT = timedelta(seconds=20)

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")


def make_model() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Linear(300, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 200)).sum().backward()
    optimizer.step()
    return model, optimizer


class Pair:
    """One that serves its state at step 7, and one that heals from it; both are of this process."""

    def __init__(self) -> None:
        context()
        self.donor = ReachableTransport(TIMEOUT, "127.0.0.1")
        self.joiner = ReachableTransport(TIMEOUT, "127.0.0.1")
        self.model, self.optimizer = make_model()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "other": (torch.arange(60_000).reshape(200, 300).t(), torch.empty(0), 7, "text"),
        }
        self.in_a_thread(lambda: self.donor.send_checkpoint([1], 7, state, TIMEOUT))

    def in_a_thread(self, work: Callable[[], Any]) -> Any:
        """As the manager's quorum has it."""
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(work).result()

    def heal(self) -> Any:
        place = self.donor.metadata()
        return self.in_a_thread(lambda: self.joiner.recv_checkpoint(0, place, 7, TIMEOUT))

    def check(self, state: Any) -> None:
        model, optimizer = make_model()
        right = sums_of(state_of(self.model, [self.optimizer]))
        assert sums_of(state_of(model, [optimizer])) != right
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        assert sums_of(state_of(model, [optimizer])) == right
        strided, empty, *rest = state["other"]
        assert torch.equal(strided, torch.arange(60_000).reshape(200, 300).t())
        assert empty.shape == (0,)
        assert rest == [7, "text"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.donor.disallow_checkpoint()
    assert len(registry()) == 0
    for one in (found.donor, found.joiner):
        one.shutdown()


@pytest.mark.long
def test_large_tensors_are_read_from_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # A weight, its two moments, and the strided one.
    assert len(registry()) == 4
    monkeypatch.setattr(ReachableTransport, "_load_from_address", None)
    pair.check(pair.heal())


def test_where_it_cannot_be_read_it_is_fetched(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RDMAAction, timeout: float) -> Any:
        raise RemoteMemoryError("a buffer", "its owner", "no way leads there")

    monkeypatch.setattr(RDMAAction, "submit", refuse)
    pair.check(pair.heal())


@pytest.mark.long
def test_over_sockets_http_is_as_fast_and_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RDMABuffer, "backend", "tcp")
    monkeypatch.setattr(RDMAAction, "submit", None)
    pair.check(pair.heal())


@pytest.mark.long
def test_parameters_do_not_change_while_they_are_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, may_go_on, has_begun = RDMAAction.submit, threading.Event(), threading.Event()

    def slowly(self: RDMAAction, timeout: float) -> Any:
        has_begun.set()
        assert may_go_on.wait(20)
        return submit(self, timeout)

    monkeypatch.setattr(RDMAAction, "submit", slowly)
    with ThreadPoolExecutor(2) as threads:
        healed = threads.submit(pair.heal)
        assert has_begun.wait(20)
        ended = threads.submit(pair.donor.disallow_checkpoint)
        wait_for(lambda: pair.donor._disallowed)
        assert not ended.done()
        may_go_on.set()
        pair.check(healed.result(20))
        ended.result(20)


@pytest.mark.long
def test_who_dies_while_it_heals_is_not_waited_for(pair: Pair) -> None:
    import socket
    from urllib.parse import urlsplit

    place = urlsplit(pair.donor.metadata())
    with socket.create_connection((place.hostname, place.port)) as sock:
        sock.sendall(f"GET {place.path}7/memory HTTP/1.0\r\n\r\n".encode())
        assert sock.recv(12) == b"HTTP/1.0 200"
    started = time.monotonic()
    pair.donor.disallow_checkpoint()
    assert time.monotonic() - started < TIMEOUT.total_seconds() / 2


@pytest.mark.long
def test_another_step_is_not_there(pair: Pair) -> None:
    with pytest.raises(OSError, match="400"):
        pair.joiner.recv_checkpoint(0, pair.donor.metadata(), 6, TIMEOUT)
