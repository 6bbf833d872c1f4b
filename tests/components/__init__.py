"""Other programs that run, read or deploy dblake, each in an environment of its own: ``tests --components``."""
