"""The databases. Every folder has the same files and passes one conformance suite; drivers live nowhere else."""
