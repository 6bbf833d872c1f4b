"""One current row per key of every table, folded from events: ``shape`` → ``fold`` → ``merge``."""
