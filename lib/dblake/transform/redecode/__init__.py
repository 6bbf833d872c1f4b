"""Decode landing again: replace events that an earlier decoder wrote, and let state follow."""
