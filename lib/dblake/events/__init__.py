"""The product: every change and every dumped row of every table, once, in order. Append-only."""
