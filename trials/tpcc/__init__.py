"""A trial of TPC-C's consistency conditions at random points of a run with kills."""
