"""The conditions that the trial ``tpcc`` asks hold for a consistent database, and each one notices its violation."""

from __future__ import annotations

import duckdb
import pytest

from trials.tpcc.trial import CONDITIONS

CONSISTENT = (
    "CREATE TABLE warehouse AS SELECT 1 AS w_id, 30.00::decimal(12,2) AS w_ytd",
    "CREATE TABLE district AS SELECT 1 AS d_w_id, n AS d_id, n * 10.00::decimal(12,2) AS d_ytd, 4 AS d_next_o_id"
    " FROM range(1, 3) t(n)",
    "CREATE TABLE orders AS SELECT 1 AS o_w_id, d AS o_d_id, n AS o_id, n AS o_ol_cnt"
    " FROM range(1, 3) t(d), range(1, 4) u(n)",
    # The second district has delivered all its orders.
    "CREATE TABLE new_order AS SELECT o_w_id AS no_w_id, o_d_id AS no_d_id, o_id AS no_o_id FROM orders"
    " WHERE o_d_id = 1",
    "CREATE TABLE order_line AS SELECT 1 AS ol_w_id, d AS ol_d_id, n AS ol_o_id FROM range(1, 3) t(d),"
    " range(1, 4) u(n), range(n) v(line)",
)
VIOLATED = {
    "a payment without its district": ("UPDATE warehouse SET w_ytd = 31", [1, 0, 0, 0]),
    "a warehouse without districts": ("INSERT INTO warehouse VALUES (2, 0)", [1, 0, 0, 0]),
    "an order number without its order": ("UPDATE district SET d_next_o_id = 5 WHERE d_id = 2", [0, 1, 0, 0]),
    "an order without its new order": ("DELETE FROM new_order WHERE no_o_id = 3", [0, 1, 0, 0]),
    "a gap in the new orders": ("DELETE FROM new_order WHERE no_o_id = 2", [0, 0, 1, 0]),
    "an order without a line": ("DELETE FROM order_line WHERE ol_d_id = 1 AND ol_o_id = 1", [0, 0, 0, 1]),
    "lines without their orders": ("UPDATE order_line SET ol_d_id = 3 WHERE ol_d_id = 2", [0, 0, 0, 2]),
}


@pytest.mark.parametrize(("change", "counts"), [("SELECT 1", [0, 0, 0, 0]), *VIOLATED.values()],
                         ids=["none", *VIOLATED])
def test_each_violation_is_counted_by_its_condition(change: str, counts: list[int]) -> None:
    with duckdb.connect() as database:
        for statement in (*CONSISTENT, change):
            database.execute(statement)
        found = [database.execute(query.format(s="main")).fetchall()[0][0] for query in CONDITIONS.values()]
    assert found == counts
