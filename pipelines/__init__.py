"""Composition: which tables and which stage functions make up a job, as a batch or as a stream."""
