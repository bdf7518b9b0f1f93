"""The frames of the messages that calls, casts, bulk and heartbeats are made of.

The bytes were written down before control messages became typed requests. A change of them is a
change of the protocol, which raises ``PROTOCOL_VERSION``.
"""

from __future__ import annotations

import pytest

from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope, pack, unpack
from monarch.wire.message import (
    Answer,
    BulkChunk,
    Call,
    Cast,
    Consignment,
    Credit,
    FoldedReply,
    Heartbeat,
    Hello,
    Log,
    Message,
    Parcel,
    PortMark,
    ProcDown,
    ProcUp,
    Replies,
    Reply,
    Retire,
    SpawnActor,
    StreamData,
    StreamRoom,
    Watch,
)

_PROC = ProcAddress(
    "proc-1", ("ipc:///run/a", "tcp://10.0.0.1:7"), "machine", "host-1", ("tcp://h:1",)
)

_FRAMES: list[tuple[Message, str]] = [
    (
        Call(actor="actor-1", method="step", rank=3, sender="client"),
        "01dc001002a76163746f722d31a473746570039090a6636c69656e74a000c0c200a000a000",
    ),
    (
        Call(
            actor="actor-1",
            method="step",
            rank=3,
            labels=("gpus",),
            sizes=(8,),
            sender="client",
            sender_actor="root",
            port=2**40,
            port_proc=_PROC,
            explicit_response_port=True,
            generation=7,
            root="client",
            crosses=2,
            trace="00-ab-cd-01",
            arrived=5,
        ),
        "01dc001002a76163746f722d31a4737465700391a4677075739108a6636c69656e74a4726f6f74cf000001000000000095a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a31c307a6636c69656e7402ab30302d61622d63642d303105",
    ),
    (Reply(2**40, 3, "proc-1"), "019703cf000001000000000003a670726f632d31c2c200"),
    (Reply(5, 3, "proc-1", True, True, 7), "0197030503a670726f632d31c3c307"),
    (
        Replies(
            5,
            "host-1",
            (FoldedReply(0, "proc-1", False, False, 2), FoldedReply(1, "proc-2", True, True, 0, 7)),
        ),
        "01943f05a6686f73742d31929600a670726f632d31c2c202009601a670726f632d32c3c30007",
    ),
    (
        Cast(
            mesh="mesh-1",
            sender="client",
            number=4,
            start=1,
            stop=9,
            dead=(2,),
            members=((1, (0, 1), (2,)),),
            inner=b"\x01\x02",
            parent=_PROC,
            port=6,
        ),
        "019b3ea66d6573682d31a6636c69656e7404010991029193019200019102c402010295a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a3106",
    ),
    (PortMark(5, 6, "proc-1"), "01943c0506a670726f632d31"),
    (
        Answer(5, "host-1", {"host": "a", "procs": [1, 2]}, "why"),
        "01951d05a6686f73742d3182a4686f7374a161a570726f6373920102a3776879",
    ),
    (Heartbeat("client"), "019207a6636c69656e74"),
    (
        Hello(_PROC, 1),
        "01940195a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a3101c2",
    ),
    (
        Watch("proc-1", _PROC),
        "019304a670726f632d3195a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a31",
    ),
    (
        ProcUp(_PROC, 42),
        "01930595a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a312a",
    ),
    (
        ProcDown("proc-1", "it was killed", "a", ("last",), False, "trainers-0", "/log"),
        "019806a670726f632d31ad697420776173206b696c6c6564a16191a46c617374c2aa747261696e6572732d30a42f6c6f67",
    ),
    (
        SpawnActor(
            actor="actor-1",
            name="trainer",
            class_name="m.T",
            rank=0,
            labels=("gpus",),
            sizes=(2,),
            owner=_PROC,
            owner_actor="root",
            is_async=True,
        ),
        "019b28a76163746f722d31a7747261696e6572a36d2e540091a467707573910295a670726f632d3192ac6970633a2f2f2f72756e2f61b07463703a2f2f31302e302e302e313a37a76d616368696e65a6686f73742d3191a97463703a2f2f683a31a4726f6f74c390",
    ),
    (
        Parcel(
            sender="client",
            segment=1,
            offset=2,
            hold=3,
            is_shared=True,
            has_payload=False,
            sizes=(4, 5),
        ),
        "01980ca6636c69656e74010203c3c2920405",
    ),
    (Consignment("client", 1, True, (7,)), "01950da6636c69656e7401c39107"),
    (BulkChunk("client", 1), "01930ea6636c69656e7401"),
    (Credit("client", 1, 4), "01940fa6636c69656e740104"),
    (Retire("client", (1, 2)), "019310a6636c69656e74920102"),
    (
        Log(
            uid="proc-1",
            label="[trainers-0]",
            stream=1,
            host="host-1",
            num_dropped=1,
            path="/log",
            host_name="a",
        ),
        "019818a670726f632d31ac5b747261696e6572732d305d01a6686f73742d3101a42f6c6f67a161",
    ),
    (StreamData("stream-1", 1), "0193cc93a873747265616d2d3101"),
    (
        StreamRoom("stream-1", 1, 65536, "client"),
        "0195cc94a873747265616d2d3101ce00010000a6636c69656e74",
    ),
]


@pytest.mark.parametrize(
    ("message", "frame"), _FRAMES, ids=[type(message).__name__ for message, _ in _FRAMES]
)
def test_a_hot_message_has_the_frame_that_it_always_had(message: Message, frame: str) -> None:
    assert pack(Envelope("to", message))[1].hex() == frame
    assert unpack([b"to", bytes.fromhex(frame), b""]).message == message
