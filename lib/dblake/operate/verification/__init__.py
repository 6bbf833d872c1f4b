"""Verification: compare state with rows that capture read at the source, while writes continue."""
