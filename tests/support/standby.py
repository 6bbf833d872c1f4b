"""A streaming standby of a PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres


def create_standby(
    primary: EmbeddedPostgres, folder: Path, *, version: Literal[16, 18] = 18, **settings: str
) -> EmbeddedPostgres:
    """Return a hot standby in ``folder``, not started; ``settings`` go to its postgresql.conf."""
    conninfo = f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password} dbname=postgres"
    # The server's user may not create it in every folder.
    folder.mkdir(mode=0o700)
    owner = primary._data.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    subprocess.run(
        [*primary._as_user(), str(primary.binaries / "pg_basebackup"), "-d", conninfo, "-D", str(folder),
         "-X", "stream", "-c", "fast", "-C", "-S", "standby"],
        check=True, capture_output=True, env=os.environ | {"PGPASSWORD": primary.password}, cwd="/",
    )
    (folder / "standby.signal").touch()
    own = {"primary_conninfo": conninfo, "primary_slot_name": "standby", "hot_standby_feedback": "on", **settings}
    return EmbeddedPostgres(folder, version=version, settings=own)


@contextmanager
def standby_of(
    primary: EmbeddedPostgres, folder: Path, *, version: Literal[16, 18] = 18, **settings: str
) -> Iterator[EmbeddedPostgres]:
    """Run a hot standby in ``folder``; ``settings`` go to its postgresql.conf."""
    with create_standby(primary, folder, version=version, **settings) as server:
        yield server
