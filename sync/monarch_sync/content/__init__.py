"""Content of files: its digest, its pieces, and single changes of a disk.

What to open:

    digest, chunks      the digest of a file; a large file in pieces
    delta               an edited file as the difference from the old content
    stamps              digests of files that need not be read again
    disk                single changes of a disk
"""
