"""What the Spark half shares: the session, append-only tables, source types, SQL literals, retries on conflict."""
