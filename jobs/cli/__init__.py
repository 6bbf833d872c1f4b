"""The command-line frame that all jobs share."""
