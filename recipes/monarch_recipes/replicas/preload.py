"""Imports of the template process, from which a restarted group's processes are forked in no time.

Only libraries: workspace code would stay as it was when the template started.
"""

import os

# Read when the libraries are imported. TorchFT prints ten lines a step by default, and
# torch warns of `find_unused_parameters`, which TorchFT needs.
os.environ.setdefault("RUST_LOG", "warn")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import numpy
import torch._dynamo
import torchft.local_sgd

__all__ = ["numpy", "torch", "torchft"]
