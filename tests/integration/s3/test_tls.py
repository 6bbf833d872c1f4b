"""A store whose certificate a private authority has signed: each client trusts it if the configuration names it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from dblake.base.core.errors import ConfigError, StorageDenied
from dblake.base.core.transient import storage_fault
from dblake.base.lake.authority import read_authority, trust_store
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import Location, Storage, join
from dblake.base.lake.tables import create_table, has_table, open_table
from dblake.transform.spark.storage import require_storage
from tests.support.certificates import create_authority, create_signed
from tests.support.s3 import S3Server, storage
from tests.support.s3_proxy import S3Proxy

ROWS = pa.schema([("n", pa.int64())])


def list_by_arrow(table: str) -> list[str]:
    """Return the names below a table's folder."""
    system, folder = filesystem(table)
    return [entry.base_name for entry in system.get_file_info(fs.FileSelector(folder))]


@pytest.fixture
def trusted(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    """Return a warehouse behind TLS whose configuration names the authority."""
    # Trust in a process is a variable of it; the end of the test restores that.
    monkeypatch.setenv("SSL_CERT_FILE", os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    authority = create_authority(tmp_path, "ours")
    with S3Proxy(s3.port, create_signed(tmp_path, "localhost", authority)) as proxy:
        reached = replace(storage(0), endpoint=f"https://localhost:{proxy.port}", ca=str(authority.certificate))
        yield Location(f"s3://{s3.new_bucket()}/lake", reached)


def test_store_of_private_authority_is_trusted(trusted: Location) -> None:
    """Also on an executor, which has no such file."""
    create_table(join(trusted, "t"), ROWS)
    sent: Location = pickle.loads(pickle.dumps(trusted))
    assert isinstance(trusted.storage.ca, str)
    Path(trusted.storage.ca).unlink()
    assert open_table(join(sent, "t")).version() == 0
    assert list_by_arrow(join(sent, "t")) == ["_delta_log"]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [has_table, list_by_arrow])
def test_store_of_unknown_authority_is_rejected(trusted: Location, attempt: Callable[[str], object]) -> None:
    with pytest.raises(OSError) as caught:
        attempt(join(Location(trusted, replace(trusted.storage, ca=None)), "t"))
    fault = storage_fault(caught.value)
    assert fault is not None, caught.value
    assert (type(fault.as_error()), "certificate" in fault.reason) == (StorageDenied, True)


@pytest.mark.slow
def test_spark_trusts_store_of_private_authority(trusted: Location, spark: SparkSession) -> None:
    require_storage(spark, trusted)
    table = join(trusted, "t")
    create_table(table, ROWS)
    spark.range(5, 6).withColumnRenamed("id", "n").write.format("delta").mode("append").save(table)
    assert open_table(table).version() == 1
    assert [tuple(row) for row in spark.read.format("delta").load(table).collect()] == [(5,)]


@pytest.mark.parametrize(("text", "reason"), [(None, "No such file"), ("none", "it holds no certificate")])
def test_unusable_ca_file_is_named(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "ca.pem"
    if text:
        file.write_text(text)
    with pytest.raises(ConfigError, match=rf"storage\.ca: the file {file} cannot be used: {reason}"):
        Storage(ca=str(file)).delta_options()


def test_java_trust_store_holds_authority(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import pkcs12

    authority = create_authority(tmp_path, "ours")
    store = trust_store(read_authority(str(authority.certificate)))
    held = pkcs12.load_pkcs12(Path(store).read_bytes(), b"changeit").additional_certs
    assert "CN=ours" in {one.certificate.subject.rfc4514_string() for one in held}
