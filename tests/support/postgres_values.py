"""Every column type of PostgreSQL with its edge values, for the parity table (see ``parity``).

The database's default settings write values in other forms than the canonical ones, so that a session that does not pin
its settings fails the test.
"""

from __future__ import annotations

from tests.support.parity import TABLE, Case, Value, columns, inserts
from tests.support.postgres import Database

SETTINGS = {
    "TimeZone": "Asia/Kolkata", "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601", "extra_float_digits": "0",
    "bytea_output": "escape", "search_path": "public, pg_catalog",
}
_VECTOR = "CREATE EXTENSION vector"
TYPES = (
    """CREATE TYPE "Odd enum" AS ENUM ('', 'a', 'A', 'it''s', 'größe', 'a,b', 'a\\b')""",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN price AS numeric(6,2)",
    "CREATE DOMAIN words AS text[]",
    "CREATE TYPE pair AS (n numeric(6,2), t text, b bytea)",
    "CREATE TYPE nested AS (p pair, ns integer[])",
    "CREATE TYPE words_range AS RANGE (subtype = text, collation = \"C\")",
    _VECTOR,
    # This build has no XML parser and stores text unchanged.
    "UPDATE pg_cast SET castmethod = 'b', castfunc = 0"
    " WHERE castsource = 'text'::regtype AND casttarget = 'xml'::regtype",
)


def _literal(text: str, type_: str) -> str:
    return "'" + text.replace("'", "''") + f"'::{type_}"


def _case(type_: str, *values: str | tuple[str, str], lossy: tuple[str, ...] = ()) -> Case:
    """Return a case. A text is its own literal, a pair (literal, canonical text); state cannot hold ``lossy`` ones."""
    pairs = [value if isinstance(value, tuple) else (value, value) for value in values]
    return Case(type_, (
        *(Value(_literal(given, type_), text) for given, text in pairs),
        *(Value(_literal(text, type_), text, held=False) for text in lossy),
    ))


_INFINITIES = ("infinity", "-infinity")
_CONTROLS = "".join(map(chr, range(1, 128)))
_TEXTS = (
    "", " ", "a   ", "\t", "\n", "\r\n", "\v\f\b", "\\", "\\\\", "\\N", "\\.", "\\n", "\\x41", "a\tb\\tc\nd", "'", '"',
    "NULL", "null", "%s", "${x}", "{}", "é", "e\u0301", "日本", "😀", "\ufeff", "\u2028", "\U0010ffff", "\uffff",
    _CONTROLS, "x" * 3000, "日" * 100_000,
)
_JSON_NUMBERS = '{"b": 1,   "a": [1e400, -0, 12345678901234567890123456789.1230, 0.10]}'

CASES = (
    _case("smallint", "-32768", "0", "32767"),
    _case("integer", "-2147483648", "0", "2147483647"),
    _case("bigint", "-9223372036854775808", "-1", "9223372036854775807"),
    _case("numeric", "0", ("-0.00", "0.00"), "0.10", "-1", "9" * 20 + "." + "9" * 18, "-" + "9" * 20 + "." + "9" * 18,
          "0.000000000000000001", "0.10000000000000000000000", ("1e3", "1000"),
          lossy=("NaN", "Infinity", "-Infinity", "1" + "0" * 20, "0.0000000000000000001", "1" + "0" * 2000,
                 "0." + "0" * 999 + "1")),
    _case("numeric(10,2)", "12345678.90", ("0.005", "0.01"), "-99999999.99", "0.00", lossy=("NaN",)),
    _case("numeric(5,-2)", ("1234567", "1234600"), ("-49", "0"), "9999900", "-9999900", lossy=("NaN",)),
    _case("numeric(2,5)", "0.00012", "-0.00099", "0.00000", lossy=("NaN",)),
    _case("numeric(38,0)", "9" * 38, "-" + "9" * 38),
    _case("numeric(38,38)", "0." + "9" * 38, "-0." + "0" * 37 + "1"),
    _case("numeric(50,10)", "9" * 40 + "." + "9" * 10, "NaN"),
    _case("real", "0", "-0", "0.1", "123456", "1.234567e+06", "3.4028235e+38", "-3.4028235e+38", "1e-45", "-1e-45",
          "1.1754944e-38", "1e-05", "NaN", "Infinity", "-Infinity"),
    _case("double precision", "0", "-0", "0.1", "0.30000000000000004", "100000000000000", "1e+15",
          "1.7976931348623157e+308", "-1.7976931348623157e+308", "5e-324", "-5e-324", "2.2250738585072014e-308",
          "1e-05", "NaN", "Infinity", "-Infinity"),
    _case("boolean", ("true", "t"), ("false", "f")),
    _case("money", "$0.00", "-$0.01", "$92,233,720,368,547,758.07", "-$92,233,720,368,547,758.08"),
    _case("date", "0001-01-01", "1582-10-10", "1969-12-31", "2024-02-29", "9999-12-31",
          lossy=(*_INFINITIES, "4714-11-24 BC", "0044-03-15 BC", "0001-12-31 BC", "10000-01-01", "12024-01-01",
                 "5874897-12-31")),
    # 02:30 on a Sunday in March does not exist in zones with daylight saving time.
    _case("timestamp without time zone", "0001-01-01 00:00:00", "1582-10-10 12:00:00", "2024-03-10 02:30:00",
          "1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.1", "9999-12-31 23:59:59.999999",
          lossy=(*_INFINITIES, "4714-11-24 00:00:00 BC", "0044-03-15 12:00:00.5 BC", "10000-01-01 00:00:00",
                 "294276-12-31 23:59:59.999999")),
    _case("timestamp(0) without time zone", ("2024-02-29 23:59:59.5", "2024-03-01 00:00:00"), lossy=_INFINITIES),
    _case("timestamp(3) without time zone", "2024-02-29 23:59:59.123"),
    _case("timestamp with time zone", "0001-01-01 00:00:00+00", ("2024-11-03 01:30:00-04", "2024-11-03 05:30:00+00"),
          ("2024-11-03 01:30:00-05", "2024-11-03 06:30:00+00"), ("2024-03-10 08:00:00+05:30", "2024-03-10 02:30:00+00"),
          "1883-11-18 17:00:00+00", "1969-12-31 23:59:59.999999+00", "9999-12-31 23:59:59.999999+00",
          lossy=(*_INFINITIES, "4714-11-24 00:00:00+00 BC", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00",
                 "294276-12-31 23:59:59.999999+00")),
    _case("timestamp(2) with time zone", "2024-02-29 23:59:59.12+00"),
    _case("time without time zone", "00:00:00", "24:00:00", "23:59:59.999999", "12:34:56.1"),
    _case("time(0) without time zone", ("23:59:59.5", "24:00:00")),
    _case("time with time zone", "24:00:00+00", "00:00:00+15:59:59", "12:34:56.789-12:30", "23:59:59.999999-15:59"),
    _case("interval", ("0", "00:00:00"), "1 mon", "-1 mons", "1 year 2 mons -3 days +04:05:06.789",
          "-1 years -2 mons +3 days -04:05:06.789", "00:00:00.000001", "-00:00:00.000001", "1 day -00:00:01",
          "-1 days +00:00:01", "178000000 years", "-178000000 years", "2562047788:00:54.775807"),
    _case("interval(0)", ("1.5 seconds", "00:00:02")),
    _case("interval year to month", ("1 year 2 months 3 days", "1 year 2 mons")),
    _case("bytea", "\\x", "\\x00", "\\x5c", "\\x0a0d09275c", "\\xff00fe", ("abc\\000", "\\x61626300"),
          "\\x" + "00" * 3000),
    _case("uuid", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
          ("{A0EEBC99-9C0B4EF8-BB6D6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    _case("json", "null", " 1 ", '""', _JSON_NUMBERS, '{"a":1,"a":2}', '"\\u0000 \\ud83d\\ude00 \\u00e9"', "[\n\t1]",
          '"é \\" \\\\ \\/ \\n 😀"'),
    _case("jsonb", "null", '""', "[]", "{}",
          (_JSON_NUMBERS, '{"a": [1' + "0" * 400 + ', 0, 12345678901234567890123456789.1230, 0.10], "b": 1}'),
          ('{"a":1,"bb":2,"a":3}', '{"a": 3, "bb": 2}'), ('"\\ud83d\\ude00 \\u00e9 \\/"', '"😀 é /"'),
          '"\\" \\\\ \\n \\t \\b \\u0001"'),
    _case("jsonpath", '$."a"[*]?(@ > 1)', ("lax $.b", '$."b"'), 'strict $."it\'s \\"x\\""'),
    _case("int4range", "empty", "(,)", ("[1,5]", "[1,6)"), "[1,)", "(,-2147483648)"),
    _case("int8range", "[-9223372036854775808,9223372036854775807)"),
    _case("numrange", "[1.0,2.00]", "(NaN,)", ("[1,Infinity]", "[1,Infinity]")),
    _case("daterange", "[2024-01-01,infinity]", "(,10000-01-01)", ("[0044-03-15 BC,2024-01-01]",
                                                                  '["0044-03-15 BC",2024-01-02)')),
    _case("tsrange", '["2024-01-01 00:00:00",infinity)', "empty"),
    _case("tstzrange", ('["2024-01-01 00:00:00+05:30","2024-01-02 00:00:00+00"]',
                        '["2023-12-31 18:30:00+00","2024-01-02 00:00:00+00"]')),
    _case("words_range", '["a,b","c""d")', '["",)', '["(","\\\\"]', "[a,b]"),
    _case("int4multirange", "{}", "{[1,3),[5,8)}", "{(,)}"),
    _case("nummultirange", "{[1.0,2.00],(3,4)}"),
    _case("tstzmultirange", '{["2024-01-01 00:00:00+00","2024-01-02 00:00:00+00")}'),
    _case('"Odd enum"', "", "a", "A", "it's", "größe", "a,b", "a\\b"),
    _case("positive", "1", "2147483647"),
    _case("price", "1.50", "-9999.99", lossy=("NaN",)),
    _case("words", "{}", '{a,NULL,"NULL"}'),
    _case("pair", '(1.50,"a,b","\\\\x00")', "(,,)", '(,"","\\\\x")', '(NaN,"""quoted"" \\\\","\\\\xff")', "(0.00,é,)"),
    _case("nested", '("(1.00,""a b"",)","{1,NULL}")', "(,{})"),
    _case("integer[]", "{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1][-1:0]={{1,2},{3,NULL}}", "{{{1},{2}}}",
          "[-5:-5]={7}"),
    _case("text[]", "{}", '{"",NULL,"NULL",a,"a b","a\\"b","a\\\\b","{}","a,b","\t","\n",é,😀," "}', '{{a},{"b,c"}}'),
    _case("character(3)[]", '{"a  ",abc}'),
    _case("bytea[]", '{"\\\\x","\\\\x005c",NULL}'),
    _case("numeric(6,2)[]", "{1.50,NaN,NULL}"),
    _case("double precision[]", "{0.1,NaN,-Infinity,-0,5e-324}"),
    _case("timestamp with time zone[]", '{"2024-01-01 00:00:00+00",infinity,"0044-03-15 12:00:00+00 BC"}'),
    _case("interval[]", '{"1 mon","-1 days +00:00:01"}'),
    _case("jsonb[]", '{"{\\"a\\": 1}",null}'.replace("null", "NULL")),
    _case("box[]", "{(1,1),(0,0);(2,2),(1,1)}"),
    _case("pair[]", '{"(1.50,\\"a,b\\",)",NULL}'),
    _case('"Odd enum"[]', '{"",a,"a,b",it\'s,"a\\\\b"}'),
    _case("positive[]", "{1,2}"),
    _case("int4range[]", '{"[1,6)",empty}'),
    _case("bit(1)", "0", "1"),
    _case("bit(8)", "00000000", "10000001"),
    _case("bit varying(10)", "", "0", "1010101010"),
    _case("bit varying", "", "1" * 200),
    _case("inet", "127.0.0.1", "127.0.0.1/8", "0.0.0.0/0", "::1", "2001:db8::/32", "::ffff:1.2.3.4"),
    _case("cidr", ("203.0.113.7", "203.0.113.7/32"), "127.0.0.0/8", "0.0.0.0/0", "::/0"),
    _case("macaddr", ("08-00-2B-01-02-03", "08:00:2b:01:02:03")),
    _case("macaddr8", "08:00:2b:01:02:03:04:05"),
    Case("xml", tuple(Value(_literal(text, "text::xml"), text) for text in ('<a b="c">é &amp; \\ \t</a>', ""))),
    _case("tsvector", "", "'a':1A 'it''s':2,3B 'x'", "'a\\\\b':1 'é'"),
    _case("tsquery", "", "'a' & !( 'b' | 'c':*AB ) <-> 'd'", "'it''s' <2> 'x'"),
    _case("point", "(1,-2.5)", "(NaN,Infinity)", "(1e+300,-0)", "(0.1,5e-324)"),
    _case("line", "{1,-1,0}"),
    _case("lseg", "[(0,0),(1,1)]"),
    _case("box", "(1,1),(0,0)"),
    _case("path", "((0,0),(1,1))", "[(0,0),(1,0.1)]"),
    _case("polygon", "((0,0),(1,0),(1,1))"),
    _case("circle", "<(0,0),1.5>"),
    _case("oid", "0", "4294967295"),
    _case("xid", "4294967295"),
    _case("xid8", "18446744073709551615"),
    _case("cid", "4294967295"),
    _case("tid", "(4294967295,65535)"),
    _case("pg_lsn", "0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"),
    _case("pg_snapshot", "100:200:150,160"),
    _case("txid_snapshot", "100:200:150"),
    _case("int2vector", "1 2 -3"),
    _case("oidvector", "1 4294967295"),
    # The text of these depends on search_path.
    _case("regclass", "public.parity", "pg_class"),
    _case("regtype", "integer", 'public."Odd enum"'),
    _case("name", "", "a b", "é" * 31, 'say "x"'),
    _case('"char"', "", "a", "\\", "\\377"),
    _case("character(5)", ("a", "a    "), ("", "     "), ("日本", "日本   "), "     ", "\\    ", "a\tb  "),
    _case("character(1)", "x", "\\"),
    _case("bpchar", "a  ", ""),
    _case("character varying(10)", "", "a   ", "日本語", "\t"),
    _case("text", *_TEXTS),
    _case("vector(3)", "[1,-2.5,0]", "[1e-45,3e+38,0.1]"),
)


def create(database: Database) -> None:
    """Create the parity table with an identity column, which the log has, and a generated one, which it omits."""
    typed = ", ".join(f"{name} {type_}" for name, type_ in columns(CASES).items())
    twice = "twice int GENERATED ALWAYS AS (touched * 2) STORED,"
    database.run(
        *(f"ALTER DATABASE {database.name} SET {name} = {value}" if name == "search_path"
          else f"ALTER DATABASE {database.name} SET {name} = '{value}'" for name, value in SETTINGS.items()),
    )
    database.run(
        *TYPES,
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, touched int NOT NULL DEFAULT 0,"
        f" given int GENERATED ALWAYS AS IDENTITY, {twice} {typed})",
        f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL",
    )


def insert(database: Database, first: int) -> None:
    """Insert all rows under ids from ``first`` on."""
    database.run(*inserts(CASES, first))
