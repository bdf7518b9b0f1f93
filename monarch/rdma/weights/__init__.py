"""Published weights: `SharedStateDict`, its holders, and copies to another layout.

What to open:

    state_dict           `SharedStateDict`
    directory            the holders of each version of the weights
    slab                 their memory
    reshard, shards      the plan of copies to another layout; tensors as it sees them
"""
