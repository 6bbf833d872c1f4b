"""Run SQL queries over the state, live and history views of a source and over its events."""
