"""Live views: in a terminal, in a browser, in a notebook."""
