"""The document of an output that runs, beside what an earlier run has left."""

from __future__ import annotations

import threading
from pathlib import Path

from dblake.base.core.errors import Fenced, OutputUnavailable
from dblake.base.lake.layout import Paths
from dblake.serve.consume.documents import STATUS, FileDocuments, partition_document
from dblake.serve.consume.filters import Selection
from dblake.serve.outputs.activity import OutputActivity, OutputState, parse_activity, write_activity
from dblake.serve.outputs.reporter import OutputReporter, ReportPlaces
from tests.support.output_lake import wait_for

EARLIER = OutputActivity(
    "other", 1, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", OutputState.FAILED, last_error="away",
    last_error_at="2026-01-01T00:00:00+00:00", failing_since="2026-01-01T00:00:00+00:00",
)


class LateDocuments(FileDocuments):
    """Documents whose first reading waits, as ZooKeeper's may."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.may_read = threading.Event()

    def read(self, name: str) -> str | None:
        """Return a document, once it may be read."""
        assert self.may_read.wait(30)
        return super().read(name)


def reported(documents: FileDocuments, name: str = STATUS) -> OutputActivity:
    """Return the document as a reader parses it."""
    text = documents.read(name)
    assert text is not None
    return parse_activity(text, "bus")


def test_success_before_earlier_failure_is_read_clears_it(tmp_path: Path) -> None:
    documents = LateDocuments(tmp_path / "bus")
    documents.write(STATUS, write_activity(EARLIER))
    with OutputReporter("bus", ReportPlaces(Paths(str(tmp_path), "shop"), Selection(), documents)) as reporter:
        reporter.note_success()
        documents.may_read.set()
    assert (reported(documents).state, reported(documents).failing_since) == (OutputState.STOPPED, None)


def test_failure_before_earlier_document_is_read_stays(tmp_path: Path) -> None:
    documents = LateDocuments(tmp_path / "bus")
    with OutputReporter("bus", ReportPlaces(Paths(str(tmp_path), "shop"), Selection(), documents)) as reporter:
        reporter.note_failure(OutputUnavailable("refused"))
        documents.may_read.set()
    assert reported(documents).failing_since is not None and reported(documents).last_error == "refused"


def test_member_that_has_a_partition_clears_its_own_error(tmp_path: Path) -> None:
    documents = FileDocuments(tmp_path / "bus")
    documents.write(STATUS, write_activity(EARLIER))
    places = ReportPlaces(Paths(str(tmp_path), "shop"), Selection(), documents, partitions=2, owned=lambda: [1])
    with OutputReporter("bus", places) as reporter:
        reporter.note_success()
        wait_for(lambda: reported(documents).failing_since is None)
    assert reported(documents).failing_since is None
    assert reported(documents, partition_document(1, STATUS)).failing_since is None


def test_process_without_its_lease_leaves_document_alone(tmp_path: Path) -> None:
    """Another one may have the output: what that has written stays, also at the end."""
    documents, answers = FileDocuments(tmp_path / "bus"), {"held": False}
    documents.write(STATUS, write_activity(EARLIER))

    def is_held() -> bool:
        if not answers["held"]:
            raise Fenced("the session has ended")
        return True

    for held in (False, True):
        answers["held"] = held
        places = ReportPlaces(Paths(str(tmp_path), "shop"), Selection(), documents, is_held=is_held)
        with OutputReporter("bus", places) as reporter:
            reporter.note_success()
        assert (reported(documents).host == EARLIER.host) is not held
