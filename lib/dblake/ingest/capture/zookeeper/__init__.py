"""Lease and progress documents in ZooKeeper, for captures on several machines."""
