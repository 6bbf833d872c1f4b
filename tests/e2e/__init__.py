"""Commands as a user runs them, from the database to the query result."""
