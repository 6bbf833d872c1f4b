"""Landing payloads to rows with keys and images, whole Arrow batches at a time. numpy and pyarrow only, no Spark."""
