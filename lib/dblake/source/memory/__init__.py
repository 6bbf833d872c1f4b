"""A database in memory: the twin of the real sources, for tests and for the quickstart of a reader of the code."""
