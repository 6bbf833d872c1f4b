"""Rows of files for an external initial load, in the payloads that a chunk read lands."""
