"""What the right half needs of Spark itself: the session."""
