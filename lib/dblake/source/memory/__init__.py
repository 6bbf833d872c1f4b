"""A database in memory: the twin of the real sources, for tests and for trying capture without a database."""
