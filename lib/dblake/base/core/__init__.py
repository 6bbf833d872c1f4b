"""The vocabulary both halves share: positions, names, schemas, windows, errors. Imports no other dblake package."""
