"""The geometry, at its older address."""

from monarch.actor import Extent, Point, Region, Shape, Slice

__all__ = ["Extent", "Point", "Region", "Shape", "Slice"]
