"""All that a source needs right of landing, in one process: reconcile, state and, when due, check and maintain."""
