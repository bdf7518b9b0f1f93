"""Distributed tensors: one program whose torch operations run on every proc of a mesh."""
