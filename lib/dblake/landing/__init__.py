"""The only seam: an append-only Delta table of what the source sent, undecoded. Written left, read right."""
