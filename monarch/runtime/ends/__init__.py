"""How processes end, how that is noticed, and what is still done then."""
