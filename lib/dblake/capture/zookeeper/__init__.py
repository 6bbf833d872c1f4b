"""Progress documents and the lease in ZooKeeper, for captures that stand by for one another."""
