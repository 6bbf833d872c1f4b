"""The application whose migrations the trial runs: Wagtail with django-oscar, in an environment of its own."""
