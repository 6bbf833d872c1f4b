"""Tests that need neither a server nor a JVM."""
