"""``python -m dblake_airflow pools FILE…``: print the sources' pools as ``airflow pools import`` reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dblake.base.core.errors import DblakeError
from dblake.config import load_airflow
from dblake_airflow.tasks import pool_of


def main(arguments: list[str]) -> int:
    """Print the pools and return 0; return an exit code of dblake's for a command or a file with a fault."""
    if len(arguments) < 2 or arguments[0] != "pools":
        print("usage: python -m dblake_airflow pools FILE...", file=sys.stderr)
        return 64
    pools = {}
    try:
        for scheduled in (load_airflow(Path(file)) for file in arguments[1:]):
            if scheduled.airflow.pool_slots is not None:
                source = scheduled.source.name
                pools[pool_of(source)] = {
                    "slots": scheduled.airflow.pool_slots, "description": f"dblake: source {source}",
                    "include_deferred": False,
                }
    except DblakeError as error:
        print(f"dblake_airflow: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(pools, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
