"""``monarch sync``: the workspace to the hosts, and what they have and had.

What to open:

    commands            arguments, options and help
    push                `monarch sync`, once or at every save
    pusher              how a command pushes, beside the program that the hosts serve
    project_workspace   which workspace is pushed, and errors where there is none
    output              what is printed, as lines or as JSON; with `monarch_sync/report.py`
    progress_bar        the bar of a push that takes long
    looks, preview      `--dry-run` and `--explain`
    watching            `--watch`: what starts a push, and what a watch outlives
    push_news           which pushes of a watch are told, and which refusals are tried again
    hot_files           files that a watch finds changing all the time
    project_edits       edits of `monarch.toml` under a watch
    key_commands        the keys of a watch
    other_users         what others do with the allocation of a watch
    bulletin_listener   how a watch hears the hosts' news
    status              `monarch sync status`
    generations         `monarch sync history`, `rollback`, `diff`
    timeline            the table of `history`
    difference          the text of `diff`
"""
