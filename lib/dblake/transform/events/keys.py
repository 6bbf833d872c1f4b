"""Encode a row's key as one string, which state compares for equality, never for order.

Place: between events and state. Guarantee: two keys have the same string exactly if the source sent the same texts for
the same columns. The order of keys is left to the database (collations, padding). Chunk windows compare another string,
which ``decode.row_keys`` builds.
"""

from __future__ import annotations


def key_sql(columns: str, image: str = "key") -> str:
    """Return SQL for the key string of a row; NULL for a table without key columns.

    ``columns`` is SQL for the array of key columns in key order, ``image`` SQL for the map that holds their texts. A
    single column's key is its text unchanged; several columns make a JSON array, so that no two keys have the same
    string.
    """
    return (
        f"CASE size({columns}) WHEN 0 THEN NULL WHEN 1 THEN {image}[{columns}[0]] "
        f"ELSE to_json(transform({columns}, part -> {image}[part])) END"
    )
