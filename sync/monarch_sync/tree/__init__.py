"""Folders as values: entries, trees that manifests share, and the plan from one to another.

What to open:

    entry               one path
    tree, tree_making   the folders that manifests share, and how they are made
    manifest            all entries, and their digest
    diff                the plan that leads from one manifest to another
    large_files         large files that a push is about to send
"""
