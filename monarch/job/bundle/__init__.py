"""monarch for hosts that have none.

What to open:

    bundle          the archive, and what is in it
    bundle_offer    its delivery; the hosts' end: `monarch/runtime/hosts/bundle_place.py`
"""
