"""A database in memory: the twin of the real sources, with which tests check capture against the model."""
