"""Readings of a source's tables as of one position: state versions and the events that follow them. No JVM."""
