"""Servers, builders and checks that tests of several kinds share: see README.md for a map."""
