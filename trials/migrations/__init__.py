"""A trial of a real application's migrations under capture."""
