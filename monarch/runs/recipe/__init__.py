"""Recipes, and plain scripts that run as one.

What to open:

    recipe, catalog        a recipe, and where its code is; those that are installed
    outline                a recipe's config, read without importing it
    script_source          whether a Python file is a plain script, and calls `monarch.step`
    plain_script,          a plain script as a run, and what runs it in each proc
      script_ranks
"""
