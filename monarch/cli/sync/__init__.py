"""``monarch sync``: pushes the workspace to the hosts, and shows their generations.

What to open:

    commands            arguments, options and help
    push                `monarch sync`, once or at every save
    pusher              pushes of a command, beside the program that the hosts serve
    project_workspace   the workspace to push, and the errors if there is none
    output              the output, as lines or as JSON; with `monarch_sync/report.py`
    progress_bar        the bar of a push that takes long
    looks, preview      `--dry-run` and `--explain`
    watching            `--watch`: the events that start a push, or interrupt a watch
    push_news           the pushes of a watch to report, and the refusals to retry
    hot_files           files that change all the time during a watch
    project_edits       edits of `monarch.toml` under a watch
    key_commands        the keys of a watch
    other_users         the actions of others on the allocation of a watch
    bulletin_listener   the hosts' bulletins, for a watch
    status              `monarch sync status`
    generations         `monarch sync history`, `rollback`, `diff`
    timeline            the table of `history`
    difference          the text of `diff`
"""
