"""Masking, between a source and capture: columns whose values must not land as they are."""
