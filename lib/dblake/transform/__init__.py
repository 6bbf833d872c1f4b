"""The right half: from landing to ordered events and current state, in process or on Spark."""
