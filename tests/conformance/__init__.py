"""One suite that every source passes."""
