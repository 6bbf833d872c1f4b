"""Run the documented AUTO CDC pipeline: ``python -m tests.support.auto_cdc CODE FOLDER JAR``.

Each line of stdin runs the pipeline in ``CODE``, a file, once, in the same server; the target's rows are printed as one
line of JSON. The target is in the catalog of Spark's own tests, in ``JAR``, which has the row-level operations that
AUTO CDC needs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"


def run_pipeline(spark: Any, code: str, storage: Path) -> None:
    """Register the graph that the code defines, and run it until it has no more input."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

    graph = create_dataflow_graph(spark, default_catalog="memory", default_database="shop", sql_conf={})
    registry = SparkConnectGraphElementRegistry(spark, graph)
    analysis = add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None)
    with graph_element_registration_context(registry), analysis:
        exec(code, {"spark": spark})  # noqa: S102 - the page's own text
    handle_pipeline_events(start_run(
        spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False, storage=storage.as_uri()
    ))


def main(code: str, folder: str, jar: str) -> None:
    """Run the pipeline for each line of stdin."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]").config("spark.jars", jar)
    spark = builder.config("spark.sql.catalog.memory", _CATALOG).getOrCreate()
    spark.sql("CREATE NAMESPACE memory.shop")
    for _ in sys.stdin:
        run_pipeline(spark, Path(code).read_text(encoding="utf-8"), Path(folder) / "storage")
        rows = spark.table("memory.shop.orders").drop("__spark_autocdc_metadata").collect()
        print("rows:", json.dumps([list(row) for row in rows]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
