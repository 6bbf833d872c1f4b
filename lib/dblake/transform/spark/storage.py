"""What a Spark session needs to read and commit to a warehouse on object storage: jars and settings.

Without such a warehouse there is nothing: no jar is resolved and no setting made. Guarantee: credentials are set within
the JVM, never on a command line.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from dblake.base.core.errors import ConfigError
from dblake.base.lake.authority import TRUST_STORE_PASSWORD, trust_store
from dblake.base.lake.storage import is_s3, storage_of
from dblake.transform.spark.s3_jars import s3_jars

_LOG_STORE = "spark.delta.logStore.s3.impl"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def storage_jars(warehouse: str) -> list[str]:
    """Return the jars for a warehouse; download missing jars first. Raises the errors of ``s3_jars``."""
    return s3_jars() if is_s3(warehouse) else []


def storage_settings(warehouse: str) -> dict[str, str]:
    """Return Spark's settings for a warehouse, with its credentials."""
    storage = storage_of(warehouse)
    return storage.spark_settings() if storage else {}


def require_storage(session: SparkSession, warehouse: str) -> None:
    """Give a session that runs already what it needs to reach a warehouse.

    Raises ConfigError if its commits to S3 would not be conditional: that is decided when a session starts.
    """
    settings = storage_settings(warehouse)
    if settings and session.sparkContext.getConf().get(_LOG_STORE) != settings[_LOG_STORE]:
        raise ConfigError(
            "the Spark session that runs already commits to S3 without a condition, so commits could be lost",
            next_step="stop it; dblake then starts one with its own log store",
        )
    trust_authority(session, warehouse)
    # Not as settings of the session: a new session from this one would lack them.
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for key, value in settings.items():
        if key.startswith("spark.hadoop."):
            hadoop.set(key.removeprefix("spark.hadoop."), value)


def require_jars(session: SparkSession, warehouse: str) -> None:
    """Raise ConfigError if a session on S3 lacks the jars: a user's own ``spark-submit`` has to name them."""
    jvm = session._jvm
    if not is_s3(warehouse) or jvm is None:
        return
    try:
        for name in (storage_settings(warehouse)[_LOG_STORE], _S3A):
            jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        raise ConfigError(
            "the jars for S3 are missing in the JVM that spark-submit has started",
            next_step="run ./spark-submit.sh setup --s3 and add all jars of the environment's folder jars-s3 to --jars",
        ) from None


def trust_authority(session: SparkSession, warehouse: str) -> None:
    """Make the driver's JVM trust the store's private authority, if it has one; S3A has no setting of its own.

    Executors on other machines have JVMs of their own, whose trust stores are theirs.
    """
    storage = storage_of(warehouse)
    authority = storage.authority() if storage else None
    jvm = session._jvm
    if authority and jvm is not None:
        properties = {"trustStore": trust_store(authority), "trustStoreType": "PKCS12",
                      "trustStorePassword": TRUST_STORE_PASSWORD}
        for name, value in properties.items():
            jvm.java.lang.System.setProperty(f"javax.net.ssl.{name}", value)
