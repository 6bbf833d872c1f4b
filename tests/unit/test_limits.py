"""docs/limits.md names the versions that README and the requirements name, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.components.run import read_table
from tests.matrix.results import RESULTS, build_table
from tests.support.outcomes import read_outcomes

HOME = Path(__file__).parents[2]
LIMITS = (HOME / "docs" / "limits.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """Return the cells of each row of the page's tables, by the row's name."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in LIMITS.splitlines() if line[:1] == "|"]
    return {name: cells for name, *cells in table if name and not name.startswith("---")}


def pinned(file: str, package: str) -> str:
    found = re.search(rf"^{re.escape(package)}==(\S+)", (HOME / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def test_readme_claims_the_versions_of_limits() -> None:
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    (sources,) = re.findall(r"^\| Sources \| (.*) \|$", readme, re.MULTILINE)
    for database in ("PostgreSQL", "MySQL", "MariaDB"):
        assert f"{database} {rows()[database][0]}" in sources
    assert "docs/limits.md" in sources
    # Versions with results in README are among those that ran.
    for database, version in re.findall(r"^\| (PostgreSQL|MySQL|MariaDB) ([\d.]+):", readme, re.MULTILINE):
        assert version in re.findall(r"[\d.]*\d", rows()[database][1]), (database, version)


def test_limits_has_the_newest_result_of_the_matrix() -> None:
    assert build_table(read_outcomes(RESULTS)) in LIMITS


def test_limits_has_the_newest_result_of_the_components() -> None:
    assert read_table() in LIMITS


def test_limits_names_the_versions_that_tests_install() -> None:
    from tests.support.kafka import VERSION

    spark, delta = pinned("requirements.txt", "pyspark"), pinned("requirements.txt", "delta-spark")
    assert rows()["Spark and Delta"][1] == f"{spark} and {delta}"
    assert f"moto {pinned('requirements-dev.txt', 'moto[s3]')} alone" in rows()["stores"][0]
    assert rows()["Kafka"][0].startswith(f"{VERSION}, ")
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={rows()['Python'][0].removesuffix(' or newer')}"
    declared = {found[1] for text in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", text))}
    assert declared == {rows()["Python"][1], *rows()["Python"][2].split(", ")}
