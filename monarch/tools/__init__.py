"""Small helpers in upstream's places."""
