"""Published weights: `SharedStateDict`, the processes that have them, and resharding.

What to open:

    state_dict           `SharedStateDict`
    directory            the processes that have each version of the weights
    slab                 their memory
    reshard, shards      the plan of copies to another layout; the tensors of the plan
"""
