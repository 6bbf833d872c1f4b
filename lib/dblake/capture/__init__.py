"""From a source to landing, in one light process: log and dumps side by side, undecoded, exactly once."""
