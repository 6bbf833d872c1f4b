"""The left half: from a database to landing, without a JVM.

A source's log and chunks, masked where configured, are committed to the landing table. Nothing is decoded for state.
"""
