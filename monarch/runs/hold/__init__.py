"""New code on trial: copies of the state before it, and the hold when it fails.

What to open:

    holding                holds the run when new code fails, until the next save
    hold_report            messages about a hold
    trial, state_copies    new code on trial in each process; copies of an actor's state
    state_walk,            the parts of a state, and how each is restored;
      tensor_copies          tensors and arrays, copied or watched
    sharded_modules        restores the shards of FSDP's modules
    copy_beside,           a copy in the host's memory, beside the first step on new code;
      copy_room              whether there is room for it
    state_memory,          the memory of a rank, which outlives its process; a state as text and
      packed_state           tensors
    run_memory             the existing copies, and the one to continue from
    unaveraged             refuses steps with gradients that DDP has not averaged
"""
