"""What allocations are made of, at its older address."""

from monarch.actor.alloc import Alloc, AllocConstraints, AllocSpec

__all__ = ["Alloc", "AllocConstraints", "AllocSpec"]
