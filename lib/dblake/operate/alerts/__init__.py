"""Alert once when a problem of `status` begins, and once when it ends: by a webhook or a command."""
