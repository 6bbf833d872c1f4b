"""dblake's jobs as Airflow DAGs, built from the jobs' own configuration file.

A file in Airflow's DAG folder imports ``dags``; downstream DAGs import ``assets`` and ``operators``. All of it runs in
Airflow's Python and needs only the checkout. ``tasks`` is free of Airflow.
"""
