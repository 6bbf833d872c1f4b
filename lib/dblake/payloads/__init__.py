"""From the bytes that a source sent to columns, with numpy and pyarrow alone.

Between landing and the packages that need values. No table is read or written here.
"""
