"""``monarch query``, ``hang``, ``trace``, ``top`` and ``dashboard``: commands to observe a mesh.

What to open:

    commands    arguments, options and help
    target      the processes, or the run, to observe
    questions   `monarch query`, `hang`, `trace`
    views       `monarch top`, and the actions of all views: stacks, a profile, an end
    pages       `monarch dashboard`
    run_actions the actions of its page's buttons on a run
    opening     the page in the person's browser
"""
