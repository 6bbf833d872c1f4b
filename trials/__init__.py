"""Trials of the product in environments of their own."""
