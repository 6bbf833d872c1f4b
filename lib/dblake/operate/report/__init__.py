"""Write one HTML page with plots about a source: operations, lag, dumps, verification, problems; without a JVM."""
