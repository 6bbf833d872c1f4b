"""The conformance suite on every version of a database that can be fetched: ``python -m tests.matrix.run``."""
