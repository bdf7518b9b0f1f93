"""The page of a run: what it shows, and the files it is made of.

`monarch dashboard` serves it and keeps it up to date; a run's ``report.html`` is the same page with
the data of one moment in it.

What to open:

    report         `report.html`, the page as it is at one moment
    run_data       what the page shows of a run, read from its folder
    run_error      the error that a run holds on or ended with: place, source, link to an editor
    generations    the tree of a run's generations
    thinning       curves with few enough points to draw
    page_files     the page's own files: index.html, page.css, parts.js (what both show),
                   page.js (what only the live page does), and uPlot
"""
