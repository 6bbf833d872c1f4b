"""Landing → events: which dumped rows count beside the log, and at which position, in process or on Spark."""
