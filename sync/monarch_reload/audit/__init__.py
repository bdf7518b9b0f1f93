"""Find what still runs old code after a reload: compare all live objects with a fresh import.

What to open:

    audit         the comparison, and its report
    living        the objects of the process, in slices
    history       the code of each version of a module, the present one included
    expected      what a commit notes of objects that have no source to compare with
    literal_defaults  defaults of functions that a source writes out
    stale_caches  results that old code has made
    graphs        what `torch.jit`, `torch.export` and `torch.fx` made of functions
    natives       copies of classes inside of native validators
    other_places  worker processes, and files that were run by their path
    held          whether old objects are in use, or only not yet collected
    findings      the findings, as text
"""
