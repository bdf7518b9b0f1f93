"""The folder on a host that mirrors a workspace: staged, committed, remembered.

What to open, by what you change:

- how a host gets a state ready: `replica.py`, `pending.py`, `staging.py`, `in_place.py`
- what a commit does to the disk, and keeps of the host's own: `commit.py`, `conflict_copies.py`
- what completes a commit, also after a crash: `completion.py`
- what a replica notes on disk, and when: `state_log.py`

The other files:

    ahead          the part of a first state that comes before its push
    states         the manifest that a stage asks for; recent ones are kept
    on_disk        the entries in the folder now, whichever program put them there
    ready          the way each file gets its content
    store          contents by digest, kept in case they come back
    patch_file     a large file changed in place
    whole_folders  folders that may be moved whole
    recall         answers about present and earlier states
    state_folder   the folder beside the replica for its notes
"""
