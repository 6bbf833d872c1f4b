"""Report how far each stage is and which problems are open, without a JVM."""
