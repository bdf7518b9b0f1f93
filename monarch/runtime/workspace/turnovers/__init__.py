"""All processes switch to other code at one moment, or none of them does."""
