"""Tests. Folders are kinds of test; see CONTRIBUTING.md."""
