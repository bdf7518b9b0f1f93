"""A parameter server: workers read the weights and write gradients straight from and to its memory.

    python examples/parameter_server.py

The server has the weights; each worker has, for each tensor, a buffer that reads and writes the
server's memory. So a worker asks the server for handles once, and from then on fetches weights and
delivers gradients without a call of it; only `step` is one. Needs torch.
"""

import torch

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import RDMABuffer

NUM_WORKERS = 2
NUM_STEPS = 20


def tensor_to_rdma_buffer(tensor: torch.Tensor) -> RDMABuffer:
    """Return a buffer that gives other processes access to a tensor's bytes.

    The original Monarch program has this function; ``RDMABuffer(tensor)`` does the same.
    """
    byte_tensor = tensor.view(torch.uint8).flatten()
    return RDMABuffer(byte_tensor)


class ParameterServer(Actor):
    def __init__(self, num_workers: int) -> None:
        torch.manual_seed(0)
        self.weights = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}
        self.gradients = [
            {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
            for _ in range(num_workers)
        ]

    @endpoint
    async def ps_get_weight_handles(self) -> dict[str, RDMABuffer]:
        return {name: tensor_to_rdma_buffer(weight) for name, weight in self.weights.items()}

    @endpoint
    async def ps_get_gradient_handles(self, rank: int) -> dict[str, RDMABuffer]:
        return {name: RDMABuffer(gradient) for name, gradient in self.gradients[rank].items()}

    @endpoint
    async def ps_get_metadata(self) -> dict[str, dict[str, tuple[int, ...]]]:
        return {"weights": {name: tuple(weight.shape) for name, weight in self.weights.items()}}

    @endpoint
    async def step(self, learning_rate: float) -> None:
        for name, weight in self.weights.items():
            mean = torch.stack([gradients[name] for gradients in self.gradients]).mean(0)
            weight -= learning_rate * mean

    @endpoint
    async def result(self) -> dict[str, list[float]]:
        return {name: weight.flatten().tolist() for name, weight in self.weights.items()}


class Worker(Actor):
    @endpoint
    async def worker_sync_with_ps(self, param_server: ParameterServer) -> bool:
        """Get the parameter server's buffers, before the first step; return ``True``."""
        self.rank = current_rank().rank
        self.weight_buffers = await param_server.ps_get_weight_handles.call_one()
        self.gradient_buffers = await param_server.ps_get_gradient_handles.call_one(self.rank)
        metadata = await param_server.ps_get_metadata.call_one()
        shapes = metadata["weights"]
        self.weights = {name: torch.empty(shape) for name, shape in shapes.items()}
        torch.manual_seed(1 + self.rank)
        return True

    @endpoint
    async def train_step(self) -> float:
        for name, weight in self.weights.items():
            await self.weight_buffers[name].read_into(weight)
            weight.requires_grad_()
        inputs = torch.randn(64, 3)
        targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3.0
        outputs = inputs @ self.weights["weight"].t() + self.weights["bias"]
        loss = (outputs - targets).square().mean()
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            await self.gradient_buffers[name].write_from(gradient)
            weight.requires_grad_(False)
        return loss.item()


def main() -> None:
    host = this_host()
    # All are forked from one process that has torch already.
    procs = host.spawn_procs({"gpus": 1 + NUM_WORKERS}, preload=["torch"])
    server = procs.slice(gpus=0).spawn("server", ParameterServer, NUM_WORKERS)
    workers = procs.slice(gpus=slice(1, None)).spawn("workers", Worker)
    workers.worker_sync_with_ps.call(server).get()
    for step in range(NUM_STEPS):
        losses = workers.train_step.call().get()
        server.step.call_one(0.2).get()
        if step % 10 == 9:
            shown = ", ".join(f"{loss:.4f}" for loss in losses.values())
            print(f"step {step + 1}: losses {shown}")
    result = server.result.call_one().get()
    print("learned", [round(value, 1) for value in (*result["weight"], *result["bias"])])


if __name__ == "__main__":
    main()
