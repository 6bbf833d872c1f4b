"""Benchmarks of each stage beside a peer, on one data set: ``./spark-submit.sh benchmark`` measures every claim."""
