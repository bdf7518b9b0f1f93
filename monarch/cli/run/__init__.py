"""Runs that begin here: `monarch run`, `recipe`, `dev`.

What to open:

    run, run_target     `monarch run`; the hosts that a run goes on
    recipe              `monarch recipe`
    dev                 `monarch dev`
    detached            `monarch run --detach`, `monarch runs attach`
    display             what a run shows
"""
