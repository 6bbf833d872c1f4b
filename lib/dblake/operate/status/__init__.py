"""Report each stage's lag and the open problems of a source, without a JVM."""
