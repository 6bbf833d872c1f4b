"""A small schema and three transactions in the manner of TPC-C: New-Order, Payment and Delivery.

Only what the consistency conditions 3.3.2.1 to 3.3.2.4 of the specification need is here. Guarantee: every commit
leaves a database that meets them.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from typing import Any

from trials.databases import Application

_WAREHOUSES, _DISTRICTS, _CUSTOMERS = 2, 5, 30
_LINES = (5, 15)
_PAUSE_SECONDS = 0.02

_SCHEMA = (
    "CREATE TABLE warehouse (w_id int PRIMARY KEY, w_name varchar(10), w_ytd decimal(12,2) NOT NULL)",
    "CREATE TABLE district (d_w_id int, d_id int, d_ytd decimal(12,2) NOT NULL, d_next_o_id int NOT NULL,"
    " PRIMARY KEY (d_w_id, d_id))",
    "CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_last varchar(16), c_balance decimal(12,2) NOT NULL,"
    " c_payments int NOT NULL, c_deliveries int NOT NULL, PRIMARY KEY (c_w_id, c_d_id, c_id))",
    "CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int NOT NULL, o_carrier_id int,"
    " o_ol_cnt int NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id))",
    "CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id))",
    "CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int NOT NULL,"
    " ol_amount decimal(6,2) NOT NULL, ol_delivered int NOT NULL,"
    " PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number))",
)
TABLES = ("warehouse", "district", "customer", "orders", "new_order", "order_line")


def load(app: Application) -> None:
    """Create the tables with their first rows: each district has one order, which is not delivered."""
    with closing(app.connect()) as connection, connection.cursor() as cursor:
        for statement in _SCHEMA:
            cursor.execute(statement)
        for warehouse in range(1, _WAREHOUSES + 1):
            cursor.execute("INSERT INTO warehouse VALUES (%s, %s, 0)", (warehouse, f"w{warehouse}"))
            for district in range(1, _DISTRICTS + 1):
                cursor.execute("INSERT INTO district VALUES (%s, %s, 0, 1)", (warehouse, district))
                for customer in range(1, _CUSTOMERS + 1):
                    cursor.execute("INSERT INTO customer VALUES (%s, %s, %s, 'BARBARBAR', 0, 0, 0)",
                                   (warehouse, district, customer))
                _new_order(cursor, random.Random(district), warehouse, district)
        connection.commit()


class Terminals:
    """Threads that run transactions, each on a connection of its own, from the block's begin to its end."""

    def __init__(self, app: Application, seed: int, count: int = 3) -> None:
        self.committed = 0
        self._app, self._stop, self._lock = app, threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + n),), daemon=True) for n in range(count)
        ]

    def __enter__(self) -> Terminals:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, choice: random.Random) -> None:
        with closing(self._app.connect()) as connection:
            while not self._stop.is_set():
                transaction = choice.choices((_new_order, _payment, _deliver), (45, 43, 12))[0]
                place = choice.randint(1, _WAREHOUSES), choice.randint(1, _DISTRICTS)
                try:
                    with connection.cursor() as cursor:
                        transaction(cursor, choice, *place)
                    # TPC-C requires some New-Order transactions to be rolled back.
                    if choice.random() < 0.01:
                        connection.rollback()
                        continue
                    connection.commit()
                except connection.Error:
                    # A deadlock: the transaction was rolled back, and another one follows.
                    connection.rollback()
                    continue
                with self._lock:
                    self.committed += 1
                time.sleep(_PAUSE_SECONDS)


def _new_order(cursor: Any, choice: random.Random, warehouse: int, district: int) -> None:
    place = warehouse, district
    cursor.execute("SELECT d_next_o_id FROM district WHERE d_w_id = %s AND d_id = %s FOR UPDATE", place)
    (order,) = cursor.fetchone()
    cursor.execute("UPDATE district SET d_next_o_id = %s WHERE d_w_id = %s AND d_id = %s", (order + 1, *place))
    lines = choice.randint(*_LINES)
    cursor.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, NULL, %s)",
                   (*place, order, choice.randint(1, _CUSTOMERS), lines))
    cursor.execute("INSERT INTO new_order VALUES (%s, %s, %s)", (*place, order))
    for number in range(1, lines + 1):
        cursor.execute("INSERT INTO order_line VALUES (%s, %s, %s, %s, %s, %s, 0)",
                       (*place, order, number, choice.randint(1, 100_000), choice.randint(1, 999_999) / 100))


def _payment(cursor: Any, choice: random.Random, warehouse: int, district: int) -> None:
    amount = choice.randint(100, 500_000) / 100
    cursor.execute("UPDATE warehouse SET w_ytd = w_ytd + %s WHERE w_id = %s", (amount, warehouse))
    cursor.execute("UPDATE district SET d_ytd = d_ytd + %s WHERE d_w_id = %s AND d_id = %s",
                   (amount, warehouse, district))
    cursor.execute("UPDATE customer SET c_balance = c_balance - %s, c_payments = c_payments + 1"
                   " WHERE c_w_id = %s AND c_d_id = %s AND c_id = %s",
                   (amount, warehouse, district, choice.randint(1, _CUSTOMERS)))


def _deliver(cursor: Any, choice: random.Random, warehouse: int, district: int) -> None:  # noqa: ARG001
    """Deliver the oldest new order of each district of the warehouse."""
    for each in range(1, _DISTRICTS + 1):
        place = warehouse, each
        cursor.execute("SELECT no_o_id FROM new_order WHERE no_w_id = %s AND no_d_id = %s"
                       " ORDER BY no_o_id LIMIT 1 FOR UPDATE", place)
        row = cursor.fetchone()
        if row is None:
            continue
        order = (*place, row[0])
        cursor.execute("DELETE FROM new_order WHERE no_w_id = %s AND no_d_id = %s AND no_o_id = %s", order)
        cursor.execute("UPDATE orders SET o_carrier_id = %s WHERE o_w_id = %s AND o_d_id = %s AND o_id = %s",
                       (choice.randint(1, 10), *order))
        cursor.execute("UPDATE order_line SET ol_delivered = 1 WHERE ol_w_id = %s AND ol_d_id = %s AND ol_o_id = %s",
                       order)
        cursor.execute("SELECT o_c_id FROM orders WHERE o_w_id = %s AND o_d_id = %s AND o_id = %s", order)
        (customer,) = cursor.fetchone()
        cursor.execute("UPDATE customer SET c_deliveries = c_deliveries + 1"
                       " WHERE c_w_id = %s AND c_d_id = %s AND c_id = %s", (*place, customer))
