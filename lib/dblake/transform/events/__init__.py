"""The events table: every change and every dumped row of every source table, once, in order; append-only."""
