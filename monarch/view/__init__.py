"""Live views: in a terminal, in a browser, in a notebook.

What to open, by what is to be changed:

- what is shown, the same for all views: `live_view.py`; of a run's folder: `run_view.py`
- `monarch top`, and `monarch status --watch`: `top.py`
- `monarch dashboard`: `server.py`; its page: `static/`
- in notebooks, `%load_ext monarch`: `notebook.py`; `procs.view()`: `mesh_view.py`
"""
