"""MySQL and MariaDB as a source: the log, chunk reads, checks."""
