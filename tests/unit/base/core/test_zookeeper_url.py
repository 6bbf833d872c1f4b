"""The ZooKeeper form of the ``progress`` setting: what it means, and the message for each mistake."""

from __future__ import annotations

import pytest

from dblake.base.core.zookeeper_url import ZookeeperUrl

REFERENCE = "${env:ZK_PASSWORD}"


@pytest.mark.parametrize(
    ("url", "parsed", "canonical"),
    [
        ("zookeeper://a/dblake", ZookeeperUrl("a:2181", "/dblake"), "zookeeper://a:2181/dblake"),
        ("zookeeper://a:1,[::1]:2/x/y?session_timeout=2.5", ZookeeperUrl("a:1,[::1]:2", "/x/y", 2.5),
         "zookeeper://a:1,[::1]:2/x/y?session_timeout=2.5"),
        (f"zookeeper://a:1/x?user=me&password={REFERENCE}&tls=disable", ZookeeperUrl("a:1", "/x", 10, "me", REFERENCE),
         f"zookeeper://a:1/x?user=me&password={REFERENCE}&tls=disable"),
        ("zookeeper://a:1/x?tls=verify&ca=my+ca.pem&certificate=%26.crt&key=k",
         ZookeeperUrl("a:1", "/x", tls="verify", ca="my+ca.pem", certificate="&.crt", key="k"),
         "zookeeper://a:1/x?tls=verify&ca=my%2Bca.pem&certificate=%26.crt&key=k"),
    ],
)
def test_zookeeper_url_parses_and_round_trips(url: str, parsed: ZookeeperUrl, canonical: str) -> None:
    assert ZookeeperUrl.parse(url) == parsed
    assert str(parsed) == canonical
    assert ZookeeperUrl.parse(canonical) == parsed


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("a:2181", "must be zookeeper://host:port"),
        ("a:2181/", "must be zookeeper://host:port"),
        ("a:2181/x/", "must be zookeeper://host:port"),
        ("a:2181/../x", "must be zookeeper://host:port"),
        ("a:2181,/x", "must be zookeeper://host:port"),
        ("me:secret@a:2181/x", "must be zookeeper://host:port"),
        ("a/x?timeout=3", "no parameter timeout; there are session_timeout, user, password, tls, ca, certificate, key"),
        ("a/x?session_timeout=soon", "session_timeout must be 1 to 120 seconds"),
        ("a/x?session_timeout=nan", "session_timeout must be 1 to 120 seconds"),
        ("a/x?session_timeout=1&session_timeout=2", "duplicate parameter"),
        ("a/x?user=", "a parameter has no value"),
        ("a/x?user=me&password=secret", "password must be a reference"),
        (f"a/x?password={REFERENCE}", "user and password must be set together"),
        (f"a/x?user=me&password={REFERENCE}", "a password needs tls=verify, or tls=disable to send it in plain text"),
        (f"a/x?user=m:e&password={REFERENCE}", "user must not contain a colon"),
        ("a/x?tls=maybe", "tls must be verify, require or disable"),
        ("a/x?ca=x", "ca, certificate and key require tls=verify or tls=require"),
        ("a/x?tls=require&key=x", "certificate and key must be set together"),
    ],
)
def test_zookeeper_url_mistake_is_named_without_value(rest: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as mistake:
        ZookeeperUrl.parse(f"zookeeper://{rest}")
    assert "secret" not in str(mistake.value).replace("a literal secret is rejected", "")


def test_zookeeper_url_resolves_paths_and_reads_secret_late(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "zookeeper://a/x?user=me&password=${file:zk}&tls=verify&ca=ca.pem"
    assert str(ZookeeperUrl.parse(url).resolve_paths(lambda path: f"/conf/{path}")) == (
        "zookeeper://a:2181/x?user=me&password=${file:/conf/zk}&tls=verify&ca=/conf/ca.pem"
    )
    monkeypatch.setenv("ZK_PASSWORD", "hunter2")
    server = ZookeeperUrl.parse(f"zookeeper://a/x?user=me&password={REFERENCE}&tls=disable")
    assert server.read_password() == "hunter2"
    assert "hunter2" not in f"{server!r} {server}"
