"""Our tables under the warehouse: where each is, how far it is, and who may commit. Without Spark, for both halves."""
