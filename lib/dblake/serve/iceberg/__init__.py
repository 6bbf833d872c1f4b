"""Publish state tables as Iceberg tables, without a copy: a snapshot names the files of a Delta version."""
