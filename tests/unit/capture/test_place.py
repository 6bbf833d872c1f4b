"""The ZooKeeper form of the ``progress`` setting: what is understood, and what each mistake is told."""

from __future__ import annotations

import pytest

from dblake.core.zookeeper_url import ZookeeperUrl

REFERENCE = "${env:ZK_PASSWORD}"


@pytest.mark.parametrize(
    ("url", "place", "again"),
    [
        ("zookeeper://a/dblake", ZookeeperUrl("a:2181", "/dblake"), "zookeeper://a:2181/dblake"),
        ("zookeeper://a:1,[::1]:2/x/y?session_timeout=2.5", ZookeeperUrl("a:1,[::1]:2", "/x/y", 2.5),
         "zookeeper://a:1,[::1]:2/x/y?session_timeout=2.5"),
        (f"zookeeper://a:1/x?user=me&password={REFERENCE}", ZookeeperUrl("a:1", "/x", 10, "me", REFERENCE),
         f"zookeeper://a:1/x?user=me&password={REFERENCE}"),
        ("zookeeper://a:1/x?tls=verify&ca=my+ca.pem&certificate=%26.crt&key=k",
         ZookeeperUrl("a:1", "/x", tls="verify", ca="my+ca.pem", certificate="&.crt", key="k"),
         "zookeeper://a:1/x?tls=verify&ca=my%2Bca.pem&certificate=%26.crt&key=k"),
    ],
)
def test_what_a_url_means_and_how_it_is_spelled(url: str, place: ZookeeperUrl, again: str) -> None:
    assert ZookeeperUrl.parse(url) == place
    assert str(place) == again
    assert ZookeeperUrl.parse(again) == place


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("a:2181", "must be zookeeper://host:port"),
        ("a:2181/", "must be zookeeper://host:port"),
        ("a:2181/x/", "must be zookeeper://host:port"),
        ("a:2181/../x", "must be zookeeper://host:port"),
        ("a:2181,/x", "must be zookeeper://host:port"),
        ("me:secret@a:2181/x", "must be zookeeper://host:port"),
        ("a/x?timeout=3",
         "no parameter timeout; supported are session_timeout, user, password, tls, ca, certificate, key"),
        ("a/x?session_timeout=soon", "session_timeout must be 1 to 120 seconds"),
        ("a/x?session_timeout=nan", "session_timeout must be 1 to 120 seconds"),
        ("a/x?session_timeout=1&session_timeout=2", "duplicate parameter"),
        ("a/x?user=", "a parameter has no value"),
        ("a/x?user=me&password=secret", "password must be a reference"),
        (f"a/x?password={REFERENCE}", "user and password must be given together"),
        (f"a/x?user=m:e&password={REFERENCE}", "user contains a colon"),
        ("a/x?tls=maybe", "tls must be verify, require or disable"),
        ("a/x?ca=x", "require tls=verify"),
        ("a/x?tls=require&key=x", "certificate and key must be given together"),
    ],
)
def test_mistakes_are_named_without_their_value(rest: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as mistake:
        ZookeeperUrl.parse(f"zookeeper://{rest}")
    assert "secret" not in str(mistake.value).replace("a literal secret is refused", "")


def test_paths_become_absolute_and_a_secret_is_looked_up_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "zookeeper://a/x?user=me&password=${file:zk}&tls=verify&ca=ca.pem"
    assert str(ZookeeperUrl.parse(url).resolve_paths(lambda path: f"/conf/{path}")) == (
        "zookeeper://a:2181/x?user=me&password=${file:/conf/zk}&tls=verify&ca=/conf/ca.pem"
    )
    monkeypatch.setenv("ZK_PASSWORD", "hunter2")
    place = ZookeeperUrl.parse(f"zookeeper://a/x?user=me&password={REFERENCE}")
    assert place.read_password() == "hunter2"
    assert "hunter2" not in f"{place!r} {place}"
