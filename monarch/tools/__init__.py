"""Small helpers in upstream's places.

What to open:

    network   addresses of machines by name
"""
