"""Checkpoints of subscriptions and membership of groups in ZooKeeper, for consumers on several machines."""
