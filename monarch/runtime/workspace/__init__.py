"""Where the runtime meets ``monarch_sync``: replicas on hosts, reloads in processes."""
