"""Source → landing in one light process: the log and dumps, undecoded, exactly once."""
