"""Answer SQL over state, live and history views, and events."""
