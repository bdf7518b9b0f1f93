"""``monarch query``, ``hang``, ``trace``, ``top`` and ``dashboard``: a look into what runs.

What to open:

    commands    arguments, options and help
    target      the processes, or the run, that are looked at
    questions   `monarch query`, `hang`, `trace`
    views       `monarch top`, and the actions of all views: stacks, a profile, an end
    pages       `monarch dashboard`
    run_actions what the buttons of its page do to a run
    opening     the page in the person's browser
"""
