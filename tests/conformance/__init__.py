"""The conformance suite: one set of tests that every source passes."""
