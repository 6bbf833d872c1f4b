"""ZooKeeper: sessions with retries and our errors, for capture's lease and progress and for consumer groups."""
