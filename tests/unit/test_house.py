"""The repository: links resolve, no machine-specific text, and operators' search words lead to headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
FOLDERS = ("jobs", "pipelines", "lib", "trials", "tools", "conf", "tests", "benchmarks", "docs", ".ci")
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".conf", ".properties", ".sh", ".sql", ""}

FILES = sorted(
    file
    for files in (HOME.glob("*"), *((HOME / folder).rglob("*") for folder in FOLDERS))
    for file in files
    if file.is_file() and file.name != ".git" and file.suffix in TEXT and "__pycache__" not in file.parts
)

# Private folders, private package mirrors, addresses of private networks.
ONE_MACHINE = re.compile(
    r"(?<![\w.$}])/(?:work|root|home|Users|mnt)/\w|artifa[c]tory|\bn[e]xus\b|jf[r]og|--index[-]url|https?://[^/\s]*/simple\b"
    r"|\b(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}\b"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(file: Path) -> str:
    return str(file.relative_to(HOME))


def machine_specific_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if ONE_MACHINE.search(line)]


@pytest.mark.parametrize(
    ("line", "is_specific"),
    [
        ("cd /" + "home/ann/dblake", True),
        ("cp /" + "work/x .", True),
        ("host: 192" + ".168.1.7", True),
        ("pip install --index" + "-url x", True),
        ("warehouse: s3://bucket/home/x", False),
        ("below /root: that user", False),
        ("version 10.2", False),
        ("metadata==10.2.0", False),
        ("host: 10" + ".2.0.7", True),
    ],
)
def test_machine_specific_pattern_matches(line: str, is_specific: bool) -> None:
    assert bool(machine_specific_lines(line)) is is_specific


def test_repository_has_no_machine_specific_text() -> None:
    assert HOME / "spark-submit.sh" in FILES
    assert {name(f): lines for f in FILES if (lines := machine_specific_lines(f.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("page", [f for f in FILES if f.suffix == ".md"], ids=name)
def test_page_links_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t for t in LINK.findall(text) if "://" not in t and not t.startswith("mailto:")]
    missing = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("word", ["resume", "retry", "failover", "standby", "backfill", "lag", "verify"])
def test_operators_word_leads_to_heading(word: str) -> None:
    """A search for the word finds a heading of the section that treats it."""
    pages = (HOME / "docs").glob("*.md")
    headings = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    assert [heading for heading in headings if re.search(rf"\b{word}\b", heading, re.IGNORECASE)]
