"""dblake's jobs as Airflow DAGs, made from the configuration file that the jobs themselves read.

``dags`` is what a file in Airflow's DAG folder imports; ``assets`` and ``operators`` are for the DAGs that come after.
These run in Airflow's Python and need nothing of ours but the checkout. ``trial`` and ``server`` run in our own, and
try all of it in an Airflow that they start themselves.
"""
