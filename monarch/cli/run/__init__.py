"""The start of runs: `monarch run`, `recipe`, `dev`.

What to open:

    run, run_target     `monarch run`; the hosts of a run
    recipe              `monarch recipe`
    dev                 `monarch dev`
    detached            `monarch run --detach`, `monarch runs attach`
    display             the displays of a run
"""
