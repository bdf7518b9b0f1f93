"""New code on trial: copies of the state before it, and the hold when it fails.

What to open:

    holding                new code fails: the run holds, and goes on with the next save
    hold_report            what is told of a hold
    trial, state_copies    new code on trial in each process; copies of an actor's state
    state_walk,            what belongs to a state, and how each thing is put back in place;
      tensor_copies          tensors and arrays, copied or watched
    sharded_modules        FSDP's modules, brought back to their shards
    copy_beside,           a copy in the host's memory, beside the first step on new code;
      copy_room              whether there is room for it
    state_memory,          the memory of a rank, which outlives its process; a state as text and
      packed_state           tensors
    run_memory             which copies there are, and which a run goes on from
    unaveraged             gradients that DDP has not averaged are not stepped with
"""
