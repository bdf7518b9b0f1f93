"""What supervision raises and reports, at its older address."""

from monarch.actor import MeshFailure, SupervisionError

__all__ = ["MeshFailure", "SupervisionError"]
