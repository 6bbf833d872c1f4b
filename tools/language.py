"""Check the language of the repository: ``python -m tools.language`` lists every use of a rejected word.

The check covers identifiers, comments, docstrings and messages of all code, and all prose files. The glossary has the
standard terms. An exception in ``ALLOWED`` names its file, its text and its reason. ``docstrings`` adds rules for the
sentences and names of lib, jobs and pipelines.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.docstrings import FOLDERS, RULES, find_unclear, read_backlog

HOME = Path(__file__).parents[1]
_PROSE = (".md", ".yaml", ".toml", ".sh", ".conf", ".properties")

#: Rejected words: verbs of speech, archaic and impersonal words. None is a term of this field, so no search finds them.
WORDS = (
    "anew", "mend", "mends", "mended", "mending", "nobody", "nobody's", "somebody", "somebody's", "anybody",
    "anybody's", "whoever", "tell", "tells", "told", "telling", "say", "says", "said", "hear", "hears", "heard",
    "meanwhile", "forever", "stands",
)
PHRASES = (
    r"(?:go|goes|gone|went|going) on with", r"for ever", r"to be had", r"(?:come|comes|came|coming) by",
    r"(?:find|finds|found|finding) out", r"(?:look|looks|looked|looking) at", r"(?:ask|asks|asked|asking) for",
    r"(?:make|makes|made|making) good", r"held against", r"(?:take|takes|took|taken|taking) in",
    r"(?:has|have|had) come to", r"by itself", r"as it must be", r"(?:need|needs|needed) someone",
)
#: What separates the words of a phrase: also a line break, with the indentation or the comment sign of the next line.
_SEPARATOR = r"[\s#]+"
_REJECTED = re.compile(
    rf"\b(?:{'|'.join((*map(re.escape, WORDS), *(phrase.replace(' ', _SEPARATOR) for phrase in PHRASES)))})\b",
    re.IGNORECASE,
)
#: Every file with a rejected word matches, also one inside a name; files that do not are not tokenized.
_SUSPECT = re.compile(
    rf"(?i:{_REJECTED.pattern})|(?<![a-z])(?i:{'|'.join(WORDS)})(?![a-z])"
    rf"|[a-z](?:{'|'.join(word.capitalize() for word in WORDS)})(?![a-z])"
)
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@dataclass(frozen=True, slots=True)
class Allowed:
    """A text that may contain a rejected word, in one file; an empty text allows the whole file."""

    file: str
    text: str
    reason: str


ALLOWED = (
    Allowed("tools/language.py", "", "lists the words themselves"),
    Allowed("lib/dblake/transform/state/file_writer.py", "tell", "the method of a file"),
    Allowed("tests/support/web_service.py", "serve forever", "the method of a server"),
    Allowed("tests/unit/serve/outputs/test_avro.py", "serve forever", "the method of a server"),
    Allowed("lib/dblake/operate/quality/results.py", '"says"', "a column of check_results and a key of `check --json`"),
    Allowed("docs/quality.md", "column, says, success", "that column, in the list of the table's columns"),
    Allowed("lib/dblake/ingest/source/postgres/embedded.py", "as user nobody", "the name of a system user"),
    Allowed("lib/dblake/ingest/source/postgres/embedded.py", '"nobody"', "the name of a system user"),
    Allowed("tests/unit/base/core/test_names.py", 'say "hi"', "a name with quotes, as data"),
    Allowed("tests/unit/base/core/test_names.py", 'say ""hi""', "the same name, quoted"),
    Allowed("tests/unit/base/core/test_names.py", '"say hi"', "the same name without its quotes"),
    Allowed("tests/unit/tools/test_language.py", "", "contains examples that the check must reject"),
    Allowed("lib/dblake/operate/status/page_server.py", "serve forever", "a method of the standard library"),
    Allowed("tests/support/s3.py", "serve forever", "a method of the standard library"),
    Allowed("tests/support/recorder.py", "serve forever", "a method of the standard library"),
    Allowed("tests/support/s3_proxy.py", "serve forever", "a method of the standard library"),
    Allowed("tests/support/odd_names.py", 'say "hi"', "a name with quotes, as data"),
    Allowed("tests/support/odd_names.py", "public/say~20~22hi~22", "the folder of that name"),
    Allowed("tests/support/postgres_values.py", 'say "x"', "a value with quotes, as data"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rejected word or a broken rule, with its position and the text around it."""

    file: str
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: '{self.word}' in: {self.text.strip()[:100]}"


def find_rejected(file: str, text: str) -> Iterator[Finding]:
    """Yield every rejected word of one file. Identifiers are split at underscores and capitals."""
    if file.endswith(".py"):
        if not _SUSPECT.search(text):
            return
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        for token in tokens:
            if token.type == tokenize.NAME:
                yield from _matches(file, " ".join(_PARTS.findall(token.string)), token.start[0])
            elif token.type in (tokenize.STRING, _FSTRING_TEXT):
                yield from _matches(file, token.string, token.start[0])
        for line, comment in _comments(tokens):
            yield from _matches(file, comment, line)
    else:
        yield from _matches(file, text, 1)


def _comments(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tuple[int, str]]:
    """Yield each comment with its first line; comments on consecutive lines are one, without their signs."""
    first, lines = 0, list[str]()
    for token in tokens:
        if token.type == tokenize.COMMENT:
            if token.start[0] != first + len(lines):
                if lines:
                    yield first, "\n".join(lines)
                first, lines = token.start[0], []
            lines.append(token.string.lstrip("#: ").rstrip())
    if lines:
        yield first, "\n".join(lines)


def _matches(file: str, content: str, first_line: int) -> Iterator[Finding]:
    for match in _REJECTED.finditer(content):
        line = first_line + content.count("\n", 0, match.start())
        around = content[max(0, match.start() - 40):match.end() + 40].replace("\n", " ")
        if not any(a.file == file and a.text in around for a in ALLOWED):
            yield Finding(file, line, re.sub(_SEPARATOR, " ", match[0]), around)


#: From Python 3.12 on, the literal text of an f-string is a separate token.
_FSTRING_TEXT = getattr(tokenize, "FSTRING_MIDDLE", -1)


def check_tree() -> list[Finding]:
    """Return the findings in every file that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=HOME, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split("\n")
    files = [name for name in listed if name.endswith((".py", *_PROSE)) and (HOME / name).is_file()]
    texts = {name: (HOME / name).read_text(encoding="utf-8") for name in files}
    backlog = read_backlog()
    return [finding for name, text in texts.items() for finding in find_rejected(name, text)] + [
        Finding(name, line, RULES[rule], content) for name, text in texts.items()
        if name.startswith(FOLDERS) and name.endswith(".py")
        for rule, line, content in find_unclear(text) if name not in backlog[rule]
    ]


if __name__ == "__main__":
    problems = check_tree()
    print(*problems, f"{len(problems)} findings", sep="\n")
    sys.exit(bool(problems))
