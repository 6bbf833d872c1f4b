"""Formats of other tools: Debezium's envelope and Avro. ``outputs.native`` is the product's own."""
