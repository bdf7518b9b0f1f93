from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from monarch.wire import payload
from monarch.wire.tensors import TensorReducer


def round_trip(value: Any) -> Any:
    data = payload.dump(value)
    return payload.load(data.data, [bytearray(buffer) for buffer in data.buffers])


TENSORS = {
    "vector": torch.arange(10_000.0),
    "tiny": torch.ones(3),
    "empty": torch.empty(0),
    "empty with shape": torch.empty(3, 0, 2),
    "scalar": torch.tensor(3.5),
    "bfloat16": torch.ones(5000, dtype=torch.bfloat16),
    "bool": torch.ones(9000, dtype=torch.bool),
    "complex": torch.ones(5000, dtype=torch.complex64),
    "conjugated": torch.complex(torch.ones(9), torch.ones(9)).conj(),
    "transposed": torch.arange(10_000).view(100, 100).t(),
    "strided": torch.arange(10_000)[5:9000:7],
    "expanded": torch.ones(1).expand(50, 50),
    "sparse": torch.eye(200).to_sparse(),
    "with gradients": torch.ones(5000, requires_grad=True),
}


# Some torches warn of each sparse tensor that is made; it names no module of ours.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_equal_in_the_same_layout(name: str) -> None:
    tensor = TENSORS[name]
    back = round_trip(tensor)
    assert type(back) is type(tensor)
    assert (back.dtype, back.shape, back.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert back.requires_grad == tensor.requires_grad
    if tensor.layout is torch.strided:
        assert back.stride() == tensor.stride()
        assert torch.equal(back, tensor)
    else:
        assert torch.equal(back.to_dense(), tensor.to_dense())


def test_a_tensor_travels_beside_the_pickle() -> None:
    tensor = torch.arange(100_000.0)
    data = payload.dump(((tensor,), {"again": tensor}))
    assert len(data.data) < 1000
    assert sum(map(len, data.buffers)) < tensor.nbytes + 1000


def test_parameters_and_modules_keep_their_types() -> None:
    layer = torch.nn.Linear(100, 100)
    back = round_trip({"layer": layer, "bias": layer.bias})
    assert type(back["layer"].weight) is torch.nn.Parameter
    assert torch.equal(back["layer"].weight, layer.weight)
    assert back["bias"] is back["layer"].bias


class Marked(torch.Tensor):
    """A subclass that users may define."""


def test_a_subclass_keeps_its_type_and_attributes() -> None:
    tensor = torch.arange(5000.0).as_subclass(Marked)
    tensor.mark = "blue"  # type: ignore[attr-defined]
    back = round_trip(tensor)
    assert type(back) is Marked
    assert back.mark == "blue"  # type: ignore[attr-defined]
    assert torch.equal(back.as_subclass(torch.Tensor), torch.arange(5000.0))


def test_views_of_one_storage_share_it_again() -> None:
    whole = torch.zeros(20_000)
    back = round_trip([whole[:5000].view(50, 100), whole[4000:], {"v": whole.view(2, -1)}])
    back[0][40, 0] = 7
    assert back[1][0] == 7
    assert back[2]["v"][0, 4000] == 7


def test_of_a_storage_only_the_used_part_travels() -> None:
    whole = torch.arange(1_000_000.0)
    data = payload.dump(
        [whole[500_000:500_100].clone(), whole[500_000:500_100], whole[500_050:501_000]]
    )
    assert sum(map(len, data.buffers)) < 10_000
    back = payload.load(data.data, [bytearray(buffer) for buffer in data.buffers])
    assert torch.equal(back[1], whole[500_000:500_100])
    back[1][50] = -1
    assert back[2][0] == -1


def test_storages_themselves_travel() -> None:
    tensor = torch.arange(5000.0)
    untyped, typed, again = round_trip([tensor.untyped_storage(), tensor._typed_storage(), tensor])
    assert bytes(untyped) == bytes(tensor.untyped_storage())
    assert typed.dtype == torch.float32
    again[0] = 9
    assert torch.tensor([], dtype=torch.float32).set_(untyped)[0] == 9


def test_a_received_tensor_may_be_written_to_whatever_it_arrived_in() -> None:
    data = payload.dump(torch.zeros(50_000))
    for kind in (bytearray, bytes):
        back = payload.load(data.data, [kind(buffer) for buffer in data.buffers])
        back += 1
        assert back.sum() == 50_000


def test_a_buffer_that_is_not_aligned_is_moved() -> None:
    data = payload.dump(torch.arange(50_000.0))
    crooked = [memoryview(bytearray(b"x" + bytes(buffer)))[1:] for buffer in data.buffers]
    assert torch.equal(payload.load(data.data, crooked), torch.arange(50_000.0))


class OnGpu:
    """What a tensor on a GPU says of itself."""

    device = torch.device("cuda", 1)


def test_what_was_sent_is_let_go_at_once() -> None:
    memory = np.ones(10_000, np.float32)
    is_there = weakref.ref(memory)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    gc.collect()
    gc.disable()
    try:
        sent = payload.dump([tensor, tensor[:10]])
        del memory, tensor
        assert is_there() is not None, "it is borrowed until it has been sent"
        del sent
        assert is_there() is None
    finally:
        gc.enable()


def test_a_cuda_tensor_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(TypeError, match=r"on cuda:1 cannot travel.*\.cpu\(\)"):
        TensorReducer()._tensor(OnGpu())


def test_torch_is_not_imported_for_those_who_do_not_use_it() -> None:
    script = (
        "import sys; from monarch.wire import payload\n"
        "class C: pass\n"
        "payload.load(*payload.dump([C(), b'a' * 100000]))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
