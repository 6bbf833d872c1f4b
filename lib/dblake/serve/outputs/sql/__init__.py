"""The output of type ``sql``: upserts into PostgreSQL, MySQL and MariaDB, exactly once. ``output`` is the entry."""
