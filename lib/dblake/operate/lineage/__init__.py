"""Report jobs' runs, and the data they read and write, as OpenLineage events."""
