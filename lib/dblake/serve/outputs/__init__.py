"""Outputs and formats: deliver a subscription's transactions to another system.

Place: behind ``consume``. Each output has its own checkpoint, retries, dead letters and metrics, so none waits for
another. ``protocol`` is what an output and a format are; the other modules are the built-in ones.
"""
