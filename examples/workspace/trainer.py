"""The project that the dev loop edits while it trains: a small CNN on handwritten digits."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch.actor import Actor, endpoint


class DigitsNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
        )


class Trainer(Actor):
    """One rank of a DDP training, driven step by step from the client."""

    def __init__(self, batch_size: int = 32, seed: int = 0):
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        num_gpus = torch.cuda.device_count()
        # NCCL wants a GPU a rank; ranks that share one, or have none, talk through gloo.
        has_own = num_gpus >= int(os.environ["LOCAL_WORLD_SIZE"])
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_own else "gloo")
        self.device = torch.device("cuda", rank % num_gpus) if num_gpus else torch.device("cpu")
        torch.set_num_threads(1)
        torch.manual_seed(seed)

        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
        images = torch.tensor(digits.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
        labels = torch.tensor(digits.target)[order]
        self.held_out = images[1437:].to(self.device), labels[1437:].to(self.device)
        self.images = images[rank:1437:world].to(self.device)
        self.labels = labels[rank:1437:world].to(self.device)

        self.batch_size = batch_size
        self.num_steps = 0
        self.net = DistributedDataParallel(DigitsNet().to(self.device))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def loss(self, logits, labels):
        return F.cross_entropy(logits, labels)

    @endpoint
    def step(self) -> dict:
        """Train on one batch."""
        started = time.perf_counter()
        picked = torch.randint(len(self.images), (self.batch_size,))
        images, labels = self.images[picked], self.labels[picked]
        logits = self.net(images)
        loss = self.loss(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_steps += 1
        return {
            "step": self.num_steps,
            "loss": loss.item(),
            "accuracy": (logits.argmax(1) == labels).float().mean().item(),
            "samples_per_second": self.batch_size / (time.perf_counter() - started),
        }

    @endpoint
    def evaluate(self) -> float:
        """Accuracy on digits that were never trained on."""
        images, labels = self.held_out
        with torch.no_grad():
            return (self.net.module(images).argmax(1) == labels).float().mean().item()

    @endpoint
    def fingerprint(self) -> tuple:
        """Return the state that must survive a reload: weights, optimizer, position."""
        weights = sum(p.detach().double().sum().item() for p in self.net.parameters())
        state = self.optimizer.state_dict()["state"]
        moments = sum(s["exp_avg_sq"].double().sum().item() for s in state.values())
        return weights, moments, self.num_steps
