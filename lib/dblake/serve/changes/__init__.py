"""Look-back: the events between two points, or one line for each key whose row differs."""
