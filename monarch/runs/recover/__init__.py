"""Recovery of ranks that fail, hang or die: they are noticed, reported, and restarted within a
budget.

What to open:

    ranks                  calls of all ranks: the first failure, and hangs
    witness                the stacks of ranks that do not answer; looks at what they do
    modules_run            which parts of a sharded model a step has run
    recovery               why ranks were lost, and whether to restart
    restarts               the budget of restarts
    deaths                 deaths that a recipe expects to survive
    allocation             hosts that end, are replaced, or are lost during a run
    clock                  the clock of a run's limits, which stops while a person debugs
    saving                 checkpoints, and what happens when one cannot be saved
    checkpoint_choice      the checkpoint that a config names: a file, a run, the best
"""
