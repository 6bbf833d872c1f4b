"""The databases that dblake captures. Each package has the same modules and passes one conformance suite."""
