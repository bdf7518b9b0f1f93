"""Content of files: its digest, its pieces, and single changes of a disk.

What to open:

    digest, chunks      the digest of a file; a large file in pieces
    delta               how an edit of a file travels
    stamps              when a file has to be read again
    disk                single changes of a disk
"""
