"""Publish the tables of a source that have changed, and remember in the frontier's log how far that is.

Place: after state's commit. Guarantee: every version of a state table that the frontier names is published by this run
or by a later one, whatever dies when. Publishing a table twice is harmless, so what is remembered only saves requests.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, RESTError, UnauthorizedError

from dblake.base.core.errors import CatalogRejected, CatalogUnavailable, ConfigError, DblakeError
from dblake.base.core.names import split_qualified
from dblake.base.lake.frontier import Frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.storage import storage_of
from dblake.base.lake.tables import find_table
from dblake.serve.iceberg.table import PublishedTable, expire, publish

EVENTS = "events"
"""The name of the table of events."""
_CATALOG = "default"
_FINISH_SECONDS = 5.0
_MARGIN_SECONDS = 3600
"""How much earlier a snapshot is expired than Delta may remove its files: clocks differ, and removing takes time."""

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes a source's state tables, and its events if ``has_events``, in the catalog with these properties."""

    def __init__(
        self, paths: Paths, properties: Mapping[str, str], namespace: str, *, every_seconds: float = 60.0,
        has_events: bool = False,
    ) -> None:
        self._paths, self._namespace, self._has_events = paths, namespace, has_events
        self._every_seconds = every_seconds
        storage = storage_of(paths.root)
        self._properties = {**(storage.iceberg_properties() if storage else {}), **properties}
        self._opened: Catalog | None = None
        self._lock = threading.Lock()
        self._published: Mapping[str, int] | None = None

    def publish_changed(self) -> list[str]:
        """Publish every table that has changed since the newest run that published all; return the tables' names."""
        table = find_table(self._paths.frontier)
        if table is None:
            return []
        version, frontier = table.version(), read_frontier(self._paths)
        before = self._read_published() if self._published is None else self._published
        now = dict(frontier.versions)
        if self._has_events and (events := find_table(self._paths.events)):
            now[EVENTS] = events.version()
        changed = [name for name, at in now.items() if before.get(name) != at]
        done = self.publish(changed, frontier) if changed else []
        if EVENTS in changed:
            record_batch(self._paths.frontier, self._application_of_events, now[EVENTS])
        if {*changed} - {EVENTS}:
            record_batch(self._paths.frontier, self._application, version)
        self._published = now
        return done

    @contextmanager
    def publishing(self, is_allowed: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Publish what changes, at most once in ``every_seconds``, in a thread, until the block ends.

        A failure is logged, and tried again: state does not wait for a catalog.
        """
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(self._every_seconds):
                try:
                    if is_allowed():
                        self.publish_changed()
                except DblakeError as error:
                    logger.error("%s", error)  # noqa: TRY400 - a traceback may hold values
                except Exception as error:  # noqa: BLE001 - the clients of catalogs are many
                    logger.error("Iceberg tables were not published: %s", type(error).__name__)  # noqa: TRY400

        thread = threading.Thread(target=run, name="iceberg", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_FINISH_SECONDS)

    def publish(self, tables: list[str], frontier: Frontier | None = None) -> list[str]:
        """Publish tables, whether they are known to have changed or not; return those that had.

        Raises the first table's error once all others are published.
        """
        targets = self._targets(frontier or read_frontier(self._paths))
        began = time.monotonic()
        # Tables are maintained in several threads, beside the one that publishes.
        changed, errors = list[str](), list[Exception]()
        with self._lock:
            with self._named_faults():
                catalog = self._catalog
            for name in tables:
                try:
                    with self._named_faults():
                        if publish(catalog, targets[name]):
                            changed.append(name)
                except Exception as error:  # noqa: BLE001 - raised below: the other tables do not wait for this one
                    errors.append(error)
        if changed:
            logger.info("%d Iceberg table(s) published in %.1f s", len(changed), time.monotonic() - began)
        if errors:
            raise errors[0]
        return changed

    def prepare_vacuum(self, table: str, hours: float) -> None:
        """Publish a table, and expire snapshots with files that Delta may remove, given their retention."""
        if table == EVENTS and not self._has_events:
            return
        frontier = read_frontier(self._paths)
        self.publish([table], frontier)
        before = int((time.time() - hours * 3600 + _MARGIN_SECONDS) * 1000)
        with self._lock, self._named_faults():
            expire(self._catalog, self._targets(frontier)[table], before)

    def _targets(self, frontier: Frontier) -> dict[str, PublishedTable]:
        names = defaultdict[str, list[str]](list)
        for table in {*frontier.versions, *frontier.behind}:
            names[published_name(table)].append(table)
        if self._has_events:
            names[EVENTS].append(EVENTS)
        clashes = sorted(" and ".join(sorted(tables)) for tables in names.values() if len(tables) > 1)
        if clashes:
            raise ConfigError(
                f"iceberg: {'; '.join(clashes)} would have the same name in the catalog",
                next_step="take one of them out of source.tables, or rename it",
            )
        source, paths = self._paths.source, self._paths
        return {
            table: PublishedTable(paths.events, self._namespace, name, Application.reconcile(source), False)
            if table == EVENTS else
            PublishedTable(paths.state(*split_qualified(table)), self._namespace, name, Application.state(source))
            for name, (table,) in names.items()
        }

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            name = self._properties.get("name", _CATALOG)
            self._opened = load_catalog(name, **{k: v for k, v in self._properties.items() if k != "name"})
            self._opened.create_namespace_if_not_exists(self._namespace)
        return self._opened

    @property
    def _application_of_events(self) -> str:
        """The transaction identifier with the version of events that was published there."""
        return f"{self._application}/{EVENTS}"

    @property
    def _application(self) -> str:
        """The transaction identifier of this catalog and namespace: another one begins with all tables."""
        where = [self._namespace, *(self._properties.get(key, "") for key in ("name", "type", "uri", "warehouse"))]
        return Application.iceberg(self._paths.source, hashlib.sha256(json.dumps(where).encode()).hexdigest()[:16])

    def _read_published(self) -> Mapping[str, int]:
        """Return the versions that the newest complete run has published; none if that cannot be read any more."""
        version = newest_batch(self._paths.frontier, self._application)
        events = {EVENTS: newest_batch(self._paths.frontier, self._application_of_events) or -1}
        try:
            return {**read_frontier(self._paths, version=version).versions, **events} if version else events
        except (DeltaError, OSError):
            return events

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        """Raise what the catalog's client raises as an error of ours, without its text, which may hold secrets."""
        try:
            yield
        except DblakeError:
            raise
        except (UnauthorizedError, ForbiddenError, OAuthError) as error:
            raise CatalogRejected(
                f"the Iceberg catalog rejected the request ({type(error).__name__})",
                next_step="correct the credentials in `iceberg.catalog`, and give them the right to change tables",
            ) from error
        except (RESTError, OSError, *_client_errors()) as error:
            raise CatalogUnavailable(
                f"the Iceberg catalog failed ({type(error).__name__})",
                next_step="check `iceberg.catalog`, and that the catalog runs; state itself is up to date",
            ) from error


def published_name(table: str) -> str:
    """Return a table's name in the catalog: ``schema_table``, if that has lower-case letters, digits and _ only.

    Other characters become _, and eight digits of the name's SHA-256 follow: catalogs ignore case.
    """
    name = "_".join(split_qualified(table))
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    return plain if plain == name else f"{plain}_{hashlib.sha256(table.encode()).hexdigest()[:8]}"


def _client_errors() -> tuple[type[Exception], ...]:
    """Return what the clients of SQL, Glue and Hive catalogs raise, of those that are installed."""
    errors = list[type[Exception]]()
    for module, name in (
        ("sqlalchemy.exc", "SQLAlchemyError"), ("botocore.exceptions", "BotoCoreError"),
        ("botocore.exceptions", "ClientError"), ("thrift.Thrift", "TException"),
    ):
        try:
            errors.append(getattr(__import__(module, fromlist=[name]), name))
        except ImportError:
            continue
    return tuple(errors)
