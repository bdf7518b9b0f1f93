"""What keeps replica groups training: chaos, restarts, fingerprints, a lighthouse, a controller.

What to open, by what is to be changed:

- when a replica group counts as hung: `groups.py`
- a bug of TorchFT: `torchft_cures.py`
"""
