"""Layouts that a source and the decoder share: what the bytes of each format mean."""
