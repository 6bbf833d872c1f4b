"""A random operator on a live system: ``rounds`` runs operations beside writers, and compares all tables after each.

``databases`` is the operated database, ``system`` the jobs on it, ``actions`` what the operator does, ``ddl`` its
schema changes. ``./spark-submit.sh stress --operations`` runs it.
"""
