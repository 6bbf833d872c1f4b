"""Readers of events and state: SQL, points in time, subscriptions and outputs. No JVM, but for Spark's SQL."""
