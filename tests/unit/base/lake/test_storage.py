"""Locations: they keep their storage, and no text of theirs holds a credential."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.errors import ConfigError, DblakeError, LandingUnavailable, StorageDenied, StorageUnavailable
from dblake.base.core.transient import storage_fault
from dblake.base.lake.files import file_path, filesystem
from dblake.base.lake.layout import Paths, StagedPaths
from dblake.base.lake.storage import Location, Storage, is_local, is_s3, join, storage_of
from dblake.base.lake.tables import create_table
from dblake.config import load_config
from tests.support.s3 import SECRET_KEY, storage

CONF = """\
warehouse: s3a://my-bucket/lake
progress: file:./progress
storage:
  endpoint: https://minio.example:9000
  access_key: ${file:access}
  secret_key: ${env:DBLAKE_TEST_SECRET}
source:
  {name: shop, type: postgres, host: h, database: d, user: u, password: "${env:P}", tables: ["*.*"]}
"""


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DBLAKE_TEST_SECRET", SECRET_KEY)
    (tmp_path / "access").write_text("AKID1\n")
    (tmp_path / "shop.yaml").write_text(CONF)
    return load_config(tmp_path / "shop.yaml").warehouse


def test_paths_of_s3_warehouse_keep_its_storage(warehouse: str) -> None:
    paths = Paths(warehouse, "shop")
    for path in (paths.landing, paths.state("public", "T"), paths.check_results, file_path(paths.events, "a.parquet")):
        assert path.startswith("s3://my-bucket/lake/shop/")
        reached = storage_of(path)
        assert reached is not None
        assert reached.delta_options()["aws_endpoint"] == "https://minio.example:9000"


def test_every_folder_of_layout_keeps_storage(warehouse: str) -> None:
    for paths in (Paths(warehouse, "shop"), StagedPaths(warehouse, "shop", join(warehouse, "staged"))):
        folders = [name for name, kind in vars(type(paths)).items() if isinstance(kind, property)]
        assert folders
        assert [name for name in folders if not isinstance(getattr(paths, name), Location)] == []


def test_credentials_are_read_at_each_use(warehouse: str, tmp_path: Path) -> None:
    reached = storage_of(warehouse)
    assert reached is not None
    assert reached.delta_options()["aws_access_key_id"] == "AKID1"
    (tmp_path / "access").write_text("AKID2\n")
    assert reached.delta_options()["aws_access_key_id"] == "AKID2"
    (tmp_path / "access").unlink()
    with pytest.raises(ConfigError, match=r"shop.yaml:5: storage.access_key: the secret file .* cannot be read"):
        reached.delta_options()


def test_pickled_location_needs_no_environment(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task on an executor has neither the driver's variables nor its files."""
    packed = pickle.dumps(Paths(warehouse, "shop"))
    monkeypatch.delenv("DBLAKE_TEST_SECRET")
    reached = storage_of(pickle.loads(packed).events)
    assert reached is not None
    assert reached.delta_options()["aws_secret_access_key"] == SECRET_KEY


def test_texts_of_storage_hold_no_credential(warehouse: str) -> None:
    reached = storage_of(warehouse)
    unpacked = pickle.loads(pickle.dumps(reached))
    assert SECRET_KEY not in f"{warehouse!r} {reached!r} {unpacked!r} {unpacked} {storage(1)!r}"


def test_s3_url_without_storage_is_rejected(warehouse: str) -> None:
    """The ordinary chain would otherwise be used where the configuration names an endpoint."""
    with pytest.raises(ValueError, match="join"):
        filesystem(f"{warehouse}/shop/events")
    assert storage_of(join(warehouse, "shop", "events")) is not None


@pytest.mark.parametrize(
    ("endpoint", "path_style", "plain", "in_path"),
    [
        (None, None, False, False), ("https://minio:9000", None, False, True), ("http://minio:9000", None, True, True),
        ("https://s3.example", False, False, False), (None, True, False, True),
    ],
)
def test_clients_agree_on_tls_and_addressing(
    endpoint: str | None, path_style: bool | None, plain: bool, in_path: bool
) -> None:
    reached = Storage(endpoint=endpoint, path_style=path_style)
    delta, spark = reached.delta_options(), reached.spark_settings()
    assert delta.get("aws_allow_http", "false") == str(plain).lower()
    assert spark["spark.hadoop.fs.s3a.connection.ssl.enabled"] == str(not plain).lower()
    assert delta["aws_virtual_hosted_style_request"] == str(not in_path).lower()
    assert spark["spark.hadoop.fs.s3a.path.style.access"] == str(in_path).lower()


@pytest.mark.parametrize(
    ("path", "local", "s3"),
    [("/a/b", True, False), ("file:///a", True, False), ("s3://a/b", False, True), ("abfss://a@b/c", False, False)],
)
def test_kind_of_location(path: str, local: bool, s3: bool) -> None:
    assert (is_local(path), is_s3(path)) == (local, s3)
    assert is_s3(Location("s3a://bucket/x", Storage()))


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("<Code>NoSuchBucket</Code>", StorageDenied, "bucket of the warehouse does not exist"),
        ("The operation lacked the necessary privileges", StorageDenied, "denied access"),
        ("java.nio.file.AccessDeniedException: s3a://b: AccessDenied", StorageDenied, "denied access"),
        ("400 Bad Request <Error><Code>ExpiredToken</Code>", StorageUnavailable, "have expired"),
        ("S3Exception: SlowDown (Service: S3, Status Code: 503)", StorageUnavailable, "throttling"),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation", StorageDenied, "bucket of the warehouse"),
        ("AWS Error INTERNAL_FAILURE during GetObject operation: Failed to flush", StorageUnavailable, "throttling"),
        ("<Code>SignatureDoesNotMatch</Code>", StorageDenied, "rejected the credentials"),
        ("<Code>RequestTimeTooSkewed</Code>", StorageDenied, "rejected this machine's clock"),
        ("Unable to load credentials from any of the providers in the chain", StorageDenied,
         "no credentials for object storage were found"),
        ("invalid peer certificate: UnknownIssuer", StorageDenied,
         "has a certificate that this machine does not trust"),
    ],
)
def test_storage_fault_by_clients_words(text: str, kind: type[DblakeError], reason: str) -> None:
    fault = storage_fault(OSError(text))
    assert fault is not None
    error = fault.as_error()
    assert type(error) is kind
    assert reason in str(error)
    assert error.next_step


def test_own_errors_are_no_storage_faults() -> None:
    assert storage_fault(LandingUnavailable("x: AccessDenied")) is None
    assert storage_fault(ValueError("NoSuchBucket")) is None


def test_table_in_impossible_folder_is_denied() -> None:
    """A retry would fail again, so it is no failure that may pass."""
    with pytest.raises(StorageDenied, match="the folder /proc/dblake/t cannot be created: no such file") as denied:
        create_table("/proc/dblake/t", pa.schema([("n", pa.int64())]))
    assert denied.value.exit_code == 78
