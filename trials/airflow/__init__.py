"""A trial of the DAGs in a real Airflow."""
