"""The author of a push: who has what, who gets what, in which order, and going back."""
