"""DBLog on a lakehouse: source → capture → landing → reconcile → events → state → consumers.

Left of ``landing`` runs a plain Python process with database drivers and no JVM: ``source``, ``mask``, ``capture``.
Right of it runs Spark without a database driver: ``reconcile``, ``redecode``, ``events``, ``state``, ``sql``,
``maintenance``, ``quality``, ``spark``. Both halves share ``core``, ``lake``, ``formats``, ``landing`` and ``decode``;
``status`` reads both, and ``config`` declares the configuration file. ``docs/design.md`` describes the path.
"""
