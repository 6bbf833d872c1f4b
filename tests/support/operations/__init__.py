"""A random operator on a live system: ``rounds`` runs operations beside writers, and compares all tables after each.

``databases`` is the operated database, ``system`` the jobs on it, ``actions`` what the operator does to a ``scene``,
``ddl`` its schema changes, ``paused_imports`` and ``incarnations`` what it does to landing and events.
``./spark-submit.sh stress --operations`` runs it.
"""
