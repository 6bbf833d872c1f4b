"""Consume a lake's changes without Spark: bootstrap, whole transactions in commit order, checkpoints, groups.

Place: behind events and state, before applications and ``outputs``. ``docs/consumers.md`` is the contract.
"""
