"""Live views: in a terminal, in a browser, in a notebook.

What to open:

    live_view, run_view   the data that all views show: of a mesh; of a run's folder
    top                   `monarch top`
    server                `monarch dashboard`; its page is `monarch.runs.page`
    notebook              `%load_ext monarch`
    mesh_view             `procs.view()`
"""
