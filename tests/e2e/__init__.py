"""The commands as a user types them, from the database to the answer."""
