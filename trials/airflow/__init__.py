"""Try the DAGs in a real Airflow."""
