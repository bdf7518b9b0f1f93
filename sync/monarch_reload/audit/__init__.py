"""What still runs old code after a reload: everything that lives is compared with what a fresh
import gives.

What to open:

    audit         the comparison, and what it tells
    living        the objects of the process, in slices
    fresh_codes   the code of a source, by name
    history       the code that modules ran before
    expected      what a commit notes of objects that have no source to compare with
    literal_defaults  defaults of functions that a source writes out
    stale_caches  results that old code has made
    graphs        what `torch.jit`, `torch.export` and `torch.fx` made of functions
    natives       copies of classes inside of native validators
    other_places  worker processes, and files that were run by their path
    held          whether what is old is alive, or only not yet collected
    findings      what was found, in words
"""
