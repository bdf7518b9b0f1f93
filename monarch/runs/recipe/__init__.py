"""Recipes, and plain scripts that run as one.

What to open:

    recipe, catalog        a recipe, and where its code is; the installed recipes
    outline                a recipe's config, read without importing it
    script_source          whether a Python file is a plain script, and calls `monarch.step`
    plain_script,          a plain script as a run, and the actor that runs it
      script_ranks
"""
