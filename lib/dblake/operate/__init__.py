"""What an operator runs beside the path: one cycle of jobs, maintenance, checks, verification, status, report."""
