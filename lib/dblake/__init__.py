"""DBLog on a lakehouse: source → capture → landing → reconcile → events → state → consumers.

Each folder is one step of that path. Left of ``landing`` runs a plain Python process with database drivers and no
JVM; right of it runs Spark with no database driver. ``core`` holds the words both halves share.
"""
