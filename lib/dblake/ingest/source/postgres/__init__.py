"""PostgreSQL 13 to 18 by logical replication (pgoutput) and COPY."""
