"""Live views: in a terminal, in a browser, in a notebook.

What to open:

    live_view, run_view   what is shown of a mesh; of a run's folder: the same for all views
    top                   `monarch top`, and `monarch status --watch`
    server                `monarch dashboard`; its page is `monarch.runs.page`
    notebook              `%load_ext monarch`
    mesh_view             `procs.view()`
"""
