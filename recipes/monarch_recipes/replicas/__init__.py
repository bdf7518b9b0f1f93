"""What keeps replica groups training: chaos, restarts, fingerprints, a lighthouse, a controller."""
