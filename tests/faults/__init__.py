"""Processes that die where it hurts, and what is left of their work."""
