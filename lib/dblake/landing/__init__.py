"""Landing, the only seam between the halves: an append-only Delta table of what the source sent, undecoded."""
