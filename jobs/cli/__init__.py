"""The command-line frame that all jobs share, and the output of ``sql``."""
