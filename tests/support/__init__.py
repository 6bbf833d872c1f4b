"""Servers and builders that tests of several kinds use."""
