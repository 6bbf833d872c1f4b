"""Tools for this repository's own pages."""
