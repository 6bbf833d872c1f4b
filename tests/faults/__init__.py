"""Fault injection: processes, servers, connections and disks that fail while applications write."""
