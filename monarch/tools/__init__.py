"""Small helpers, some in upstream's places.

What to open:

    network    addresses of machines by name
    backends   which backend a process group takes
"""
