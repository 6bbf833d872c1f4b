"""Words both halves share: positions, names, schemas, windows, errors. Imports nothing of ours."""
