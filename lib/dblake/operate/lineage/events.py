"""Word a run's transitions as OpenLineage run events, with the client's own classes.

Place: between ``run`` and the client. Guarantee: an event holds names, types, versions and an error's text, which has
no values; all events of a run have one run id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from openlineage.client import event_v2 as ol
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.generated.base import DatasetFacet, RunFacet

from dblake import __version__
from dblake.operate.lineage.model import Dataset, Flow, Origin

PRODUCER = f"https://pypi.org/project/dblake/{__version__}/"
MAX_DATASETS = 500
"""Datasets of a side of an event: a server has a limit, too, and tables are many."""
_MASKS = {"hash": "hashed with a key before it is stored", "truncate": "truncated before it is stored"}


@dataclass(frozen=True, slots=True)
class ParentRun:
    """A run that started this one, as ``namespace/job/run id``."""

    namespace: str
    job: str
    run: str

    @classmethod
    def parse(cls, text: str) -> ParentRun | None:
        """Return the run that a text names; None if it does not name one. A namespace may have slashes."""
        parts = text.rsplit("/", 2)
        if len(parts) != 3 or not all(parts) or not _is_uuid(parts[2]):
            return None
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What all events of a run have: its job, its id, and the runs that it is part of."""

    namespace: str
    job: str
    run: str
    runs_on: bool
    parent: ParentRun | None = None
    root: ParentRun | None = None


def build_event(
    state: ol.RunState, at: datetime, identity: RunIdentity, flow: Flow, error: str | None = None
) -> ol.RunEvent:
    """Return the event of one transition of a run; ``error`` is the message of one that failed."""
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(__version__, "dblake", producer=PRODUCER),
    }
    if identity.parent:
        facets["parent"] = _parent_facet(identity.parent, identity.root)
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python", producer=PRODUCER)
    kind = job_type_job.JobTypeJobFacet(
        "STREAMING" if identity.runs_on else "BATCH", "DBLAKE", "JOB", producer=PRODUCER
    )
    return ol.RunEvent(
        eventTime=at.isoformat(), producer=PRODUCER, eventType=state, run=ol.Run(identity.run, facets=facets),
        job=ol.Job(identity.namespace, identity.job, facets={"jobType": kind}),
        inputs=[ol.InputDataset(*one.name, facets=_facets(one)) for one in flow.inputs[:MAX_DATASETS]],
        outputs=[ol.OutputDataset(*one.name, facets=_facets(one)) for one in flow.outputs[:MAX_DATASETS]],
    )


def _parent_facet(parent: ParentRun, root: ParentRun | None) -> parent_run.ParentRunFacet:
    outermost = root or parent
    return parent_run.ParentRunFacet(
        run=parent_run.Run(parent.run), job=parent_run.Job(parent.namespace, parent.job),
        root=parent_run.Root(
            run=parent_run.RootRun(outermost.run), job=parent_run.RootJob(outermost.namespace, outermost.job)
        ),
        producer=PRODUCER,
    )


def _facets(dataset: Dataset) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if dataset.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in dataset.columns.items()]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)
    if dataset.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(dataset.version), producer=PRODUCER)
    if dataset.origins:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            {column: column_lineage_dataset.Fields([_input_field(origin)])
             for column, origin in dataset.origins.items()},
            producer=PRODUCER,
        )
    return facets


def _input_field(origin: Origin) -> column_lineage_dataset.InputField:
    rule = origin.mask
    change = column_lineage_dataset.Transformation(
        "DIRECT", "TRANSFORMATION" if rule else "IDENTITY", _MASKS[rule.does] if rule else None, rule is not None
    )
    return column_lineage_dataset.InputField(*origin.dataset, origin.column, [change])


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def parents_of(environment: Mapping[str, str]) -> tuple[ParentRun | None, ParentRun | None]:
    """Return the parent and the root run that the environment names, as Airflow's templates write them."""
    names: Sequence[str] = ("OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID")
    parent, root = (ParentRun.parse(environment.get(name, "")) for name in names)
    return parent, root if parent else None
