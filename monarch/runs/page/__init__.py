"""The page of a run: its data, and its files.

`monarch dashboard` serves it and keeps it up to date; a run's ``report.html`` is the same page with
the data of one moment in it.

What to open:

    report         `report.html`, the page as it is at one moment
    run_data       the page's data, read from the run's folder
    run_error      the error that a run holds on or ended with: place, source, link to an editor
    generations    the tree of a run's generations
    thinning       curves with few enough points to draw
    page_files     the page's own files: index.html, page.css, parts.js (for both pages),
                   page.js (for the live page only), and uPlot
"""
