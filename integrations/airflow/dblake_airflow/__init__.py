"""dblake's jobs as Airflow DAGs, built from the jobs' own configuration file.

A file in Airflow's DAG folder imports ``dags`` or ``fleet``; downstream DAGs import ``assets``, ``operators`` and
``sensors``. All of it runs in Airflow's Python, beside ``dblake`` without extras; the jobs run as commands, wherever
they are installed. ``tasks`` and ``conditions`` are free of Airflow.
"""
