"""The output of type ``kafka``: topics of a cluster. ``output`` is the entry."""
