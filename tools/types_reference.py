"""Generate the type reference ``docs/types.md`` from the mapping in ``dblake.transform.spark.types``.

Run ``python -m tools.types_reference > docs/types.md``.
"""

from __future__ import annotations

from dblake.transform.spark.types import SOURCE_TYPES, TEXT

_MAX_DIGITS = 38

# PostgreSQL types that stay text, and the form of that text.
_TEXT_FORMS = (
    ("`text`, `varchar(n)`, `name`, `xml`", "unchanged"),
    ('`char(n)`, `"char"`', "`char(n)` with its trailing blanks"),
    ("`json`", "byte for byte as stored"),
    ("`jsonb`, `jsonpath`", 'as the server writes it: `{"a": 1, "b": 0.10}`'),
    ("`uuid`", "`a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11`"),
    ("`time`", "`23:59:59.999999`, up to `24:00:00`"),
    ("`timetz`", "`12:34:56.789-12:30`, in its own zone"),
    ("`interval`", "`1 year 2 mons -3 days +04:05:06.789`"),
    (f"`numeric` of more than {_MAX_DIGITS} digits", "`123.4500`, all digits; `NaN`"),
    ("`money`", "`-$1,234.50`"),
    ("`bit(n)`, `varbit(n)`", "`10000001`"),
    ("`inet`, `cidr`, `macaddr`, `macaddr8`", "`127.0.0.1/8`, `2001:db8::/32`, `08:00:2b:01:02:03`"),
    ("arrays", '`{1,NULL,-3}`, `{"a,b","NULL"}`, `{{1,2},{3,4}}`; with a lower bound other than 1: `[0:1]={1,2}`'),
    ("ranges, multiranges", "`[1,6)`, `empty`, `{[1,3),[5,8)}`"),
    ("`tsvector`, `tsquery`", "`'a':1A 'b':2`, `'a' & !'b'`"),
    ("`point`, `line`, `lseg`, `box`, `path`, `polygon`, `circle`", "`(1,-2.5)`, `{1,-1,0}`, `<(0,0),1.5>`"),
    ("`oid`, `xid8`, `tid`, `pg_lsn`, `pg_snapshot`", "`4294967295`, `(0,1)`, `16/B374D848`, `100:200:150`"),
    ("`regclass` and the other `reg…` types", "the name at capture time: `public.orders`, `integer`"),
    ("enums, composites", 'the label; `(1.50,"a,b",)`'),
    ("extension types: `hstore`, `vector`, …", "as the extension writes them"),
)

_PAGE = """\
# Types

Events keep every value as the source's own text. State tables and the typed views hold Spark types:

| source type | Spark type | values it cannot hold |
| --- | --- | --- |
{mapping}
| all others: text, uuid, json, arrays, enums, sets, bits, time, interval, geometry, … and numeric or decimal of more \
than {digits} digits | `{text}`, the exact text | none |

A PostgreSQL domain is read as its base type. Types that stay text have the following form, in dump and log alike,
whatever the session settings of the database or the role:

| source type | text |
| --- | --- |
{forms}

Neither events nor state contain PostgreSQL's generated columns: `preflight` lists them. Versions before 18 do not log
them, and `preflight` rejects a publication of 18 that publishes them. Identity columns are ordinary columns.

## Lossy values

If a type cannot hold a value, state holds NULL and names the column in the row's `_lossy`; the event keeps the exact
text. The same applies to bytes that are not valid UTF-8: the event holds them as `\\x` and hexadecimal digits. Numbers
are never rounded: a number with too many digits counts as one the type cannot hold. `sql` prints a note, once for each
table that a session reads, with the columns and the number of rows. Floating-point types hold NaN and the infinities.
Times with a zone are instants, shown in UTC.

If a value was never sent, state holds NULL and names the column in the row's `_missing`
([runbook](runbook.md#values-in-_missing)).

## Type changes

State follows a type change at the source if the wider of the two types holds all values of the other. Such pairs are
`integer` and `bigint`, `real` and `double precision`, and decimals with enough digits. The state table gets or keeps
the wider type. Any other change stops that table, by name, until its state is rebuilt from a dump
([runbook](runbook.md#78-state)).
"""


def build_page() -> str:
    """Return the page as Markdown."""
    mapping = "\n".join(
        f"| {', '.join(f'`{name}`' for name in row.shown.split(', '))} | `{row.spark}` | {row.cannot_hold or 'none'} |"
        for row in SOURCE_TYPES
    )
    forms = "\n".join(f"| {types} | {text} |" for types, text in _TEXT_FORMS)
    return _PAGE.format(mapping=mapping, digits=_MAX_DIGITS, text=TEXT, forms=forms)


if __name__ == "__main__":
    print(build_page(), end="")
