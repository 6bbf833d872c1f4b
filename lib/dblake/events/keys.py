"""A row's key as one string: what state compares, always for equality, never for order.

Promise: two keys have the same string exactly if the source sent the same texts for the same columns. The order of
keys belongs to the database (collations, padding), so there is none here. Who has a frame wraps it in ``expr``, who
writes SQL text pastes it. Chunk windows compare a string of their own, which decoding makes (``reconcile.decode``).
"""

from __future__ import annotations


def key_sql(columns: str, image: str = "key") -> str:
    """SQL for the key string of a row.

    ``columns`` is SQL for the array of key columns in key order, ``image`` SQL for the map that holds their texts. A
    single column's key is its text as it stands; several make a JSON array, so that no two keys run together. NULL
    for a table without key columns.
    """
    return (
        f"CASE size({columns}) WHEN 0 THEN NULL WHEN 1 THEN {image}[{columns}[0]] "
        f"ELSE to_json(transform({columns}, part -> {image}[part])) END"
    )
