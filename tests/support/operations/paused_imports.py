"""An import that is paused while maintenance expires landing, other dumps run and capture dies.

The action fails, whatever the tables hold in the end, if maintenance deletes log that the unfinished import needs, if
reconcile has to discard rows of it, or if it is completed although another dump of its table was queued beside it.
"""

from __future__ import annotations

from typing import Any

from dblake.ingest.capture.dump_task import DumpControl, DumpState
from dblake.ingest.capture.throttle import Throttle
from tests.support.operations.scene import Scene

_SLOW = Throttle(chunk_size=10, delay=0.2)
"""Of a table of some hundred rows an import has read a part when it is paused."""
_END_SECONDS = 40.0


def pause_import(scene: Scene) -> str:
    """Import a table's rows as of now over those it has; the writers' later changes stay."""
    system, dice, table = scene.system, scene.dice, scene.keyed_table()
    if table is None:
        return "no table with a key"
    scene.note(system.await_heartbeat())
    taken = scene.database.export(table, system.new_file())
    system.throttle(_SLOW)
    import_id, refusal = system.start_import(table, taken.files)
    if refusal:
        system.throttle(Throttle())
        return f"import of {table} rejected: {refusal}"
    scene.pause(2)
    system.steer(DumpControl.PAUSE, import_id)
    beside = dice.choice(["no other dump", "a dump of it", "a dump of others"])
    for number in range(2):
        scene.pause()
        scene.note(system.advance())
        _expire(scene)
        if number == 0 and beside != "no other dump":
            others = [other for other in scene.tables() if other != table]
            system.dump([table] if beside == "a dump of it" else others[:2])
    is_killed = dice.random() < 0.3
    if is_killed:
        system.kill_capture()
        system.start_capture()
    system.steer(DumpControl.RUN, import_id)
    system.throttle(Throttle())
    scene.note(_judge_end(scene, table, import_id))
    return f"import of {table} paused beside maintenance, with {beside}" + (", capture killed" if is_killed else "")


def _expire(scene: Scene) -> None:
    """Expire all of landing that nothing needs; note it if that deletes what the import needs."""
    system = scene.system
    needed = system.first_needed()
    system.expire_landing()
    if needed is not None and (oldest := system.oldest_batch()) > needed:
        scene.note(f"an import needs landing from batch {needed} on, but maintain has left batch {oldest} and later")


def _judge_end(scene: Scene, table: str, import_id: str) -> str:
    """Wait for the import's end; return what is wrong with it, or an empty text."""
    system, waited = scene.system, 0.0
    while not DumpState((one := system.dumps(table)[import_id])["state"]).is_final:
        if waited > _END_SECONDS:
            return f"the import is {one['state']} after {_END_SECONDS:.0f} s"
        system.wait(0.3)
        waited += 0.3
    scene.note(system.advance())
    discarded = [problem["detail"] for problem in system.status()["problems"] if problem["code"] == "rows_discarded"]
    if discarded:
        return f"rows of the import were discarded: {discarded}"
    return judge_state(one, sorted(other for other in system.dumps(table) if other > import_id))


def judge_state(one: dict[str, Any], later: list[str]) -> str:
    """Return what is wrong with the state of an import that has ended; ``later`` are the dumps queued after it."""
    if later and one["state"] == DumpState.DONE:
        return f"the import is done, although dump {later[0]} of its table was queued beside it"
    if later or one["state"] == DumpState.DONE:
        return ""
    return f"the import is {one['state']}, although nothing was queued beside it: {one['error']}"
