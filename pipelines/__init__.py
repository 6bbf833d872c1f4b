"""Wiring: turn a configuration into the packages' arguments. Algorithms and table access live in the packages."""
