"""Millions of calls in an audit database, made by the server itself: realistic columns and lengths, real data keys.

What is sealed is noise of a record's usual length: it is fetched and fails to open, after the same decryption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, Final

import psycopg

from audit.keys import KeyProvider
from audit.vault import Vault, lookup, terms, unwrap

TENANTS: Final = 50
SUBJECTS: Final = 20  # of a tenant on a day: each has a data key
WORDS: Final = 200  # that prompts are made of; one record holds 12 of them in a row
RARE: Final = "zymurgy"  # in one of 5,000 indexed records
TALKS: Final = 4  # conversations of a subject on a day
SEARCHABLE: Final = 5  # one tenant in so many is indexed by words
AT_ONCE: Final = 2  # days

_KEYS: Final = """
CREATE UNLOGGED TABLE made_keys (day date, tenant int, subject int, id text, words bigint[], rare bigint, talks bytea[])
"""

# r, u: what decides the rare things; started_at grows with g, as a day's calls do.
_CALLS: Final = """
INSERT INTO warden.audit_calls (
    started_at, call_id, sidecar, log, position, journal, first_sequence, sequence, region, jurisdiction, decided_at,
    settled_at, tenant, principal, principal_kind, key_id, method, model, requested_version, model_version, data_class,
    rule, bundle, level, outcome, status, reason, internal, would_refuse, trace_id, span_id, sampled, tensors,
    request_bytes, requested_tokens, response_bytes, responses, prompt_bytes, output_bytes, data_key, identity_sealed,
    conversation_mac, prompt_digest, prompt_sealed, output_digest, output_sealed, input_tokens, output_tokens, ttft_ns,
    duration_ns, findings)
SELECT at, substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(n, 1, 3) || '-8' || substr(n, 4, 3) || '-' ||
        substr(n, 7, 12),
    'pod-' || g %% 8, 'pod-' || g %% 8 || '.00112233445566' || to_char(%(number)s::int, 'FM00'), g / 8,
    'journal-' || g %% 8, g * 3, g * 3 + 2,
    CASE WHEN g %% 3 = 0 THEN 'eu-central-1' ELSE 'eu-west-1' END, 'EU', at, at + interval '800 ms',
    'tenant-' || t, CASE WHEN u < 0.5 THEN '' ELSE 'robot-' || t || '-' || s %% 5 END,
    CASE WHEN u < 0.5 THEN 'jwt' ELSE 'api_key' END,
    CASE WHEN u < 0.5 THEN '' ELSE 'KEY' || to_char(t * 40 + g %% 40, 'FM000000000') END,
    '/inference.GRPCInferenceService/ModelInfer',
    CASE WHEN r > 0.99999 THEN 'retired' ELSE 'model-' || m END, '', '1',
    CASE WHEN u < 0.7 THEN '' WHEN u < 0.9 THEN 'internal' WHEN u < 0.9999 THEN 'pii' ELSE 'phi' END,
    CASE WHEN r BETWEEN 0.5 AND 0.5001 THEN 'guards.no-cards' ELSE 'tenants/tenant-' || t || '.yaml:models' END,
    'sha256:' || repeat('ab', 32), 'full',
    CASE WHEN r < 0.93 THEN 'completed' WHEN r < 0.98 THEN 'refused' WHEN r < 0.995 THEN 'failed'
         WHEN r < 0.9999 THEN 'cancelled' ELSE 'aborted' END,
    CASE WHEN r < 0.93 THEN 0 WHEN r < 0.98 THEN 8 WHEN r < 0.995 THEN 14 ELSE 1 END,
    CASE WHEN r < 0.93 THEN '' WHEN r < 0.96 THEN 'RATE_TOKENS' WHEN r < 0.9799 THEN 'RATE_REQUESTS'
         WHEN r < 0.98 THEN 'MEMORY_KV' ELSE 'UPSTREAM_UNAVAILABLE' END, '',
    CASE WHEN u < 0.0001 THEN 'MEMORY_KV' WHEN u < 0.01 THEN 'RATE_TOKENS' ELSE '' END,
    CASE WHEN g %% 5 = 0 THEN md5(n) ELSE '' END, '', g %% 5 = 0,
    '[["text_input", "BYTES", [1], 400]]', 600, 256, 500, 1, 240, 200, k.id,
    decode(repeat(n, 9), 'hex'), CASE WHEN u < 0.5 THEN k.talks[1 + g %% %(talks)s] END,
    decode(n || n, 'hex'), decode(repeat(n, 20), 'hex'), decode(n || n, 'hex'), decode(repeat(n, 17), 'hex'),
    60, 50, 90000000, 800000000,
    CASE WHEN r BETWEEN 0.6 AND 0.6001 THEN '[["no-cards", "prompt", "deny", "none"]]'::jsonb ELSE '[]' END
FROM (
    SELECT g, %(day)s::date + g * interval '86400 s' / %(rows)s AS at, random() AS r, random() AS u,
        floor(%(tenants)s * random() ^ 2)::int AS t, floor(%(subjects)s * random())::int AS s,
        floor(20 * random() ^ 3)::int AS m, md5(g::text || %(day)s) AS n,
        lpad(to_hex((extract(epoch FROM %(day)s::date + g * interval '86400 s' / %(rows)s) * 1000)::bigint), 12, '0')
            AS h
    FROM generate_series(0, %(rows)s - 1) g
) x JOIN made_keys k ON k.day = %(day)s AND k.tenant = t AND k.subject = s
"""

_TERMS: Final = """
INSERT INTO warden.audit_terms (started_at, call_id, data_key, terms)
SELECT started_at, call_id, data_key,
    k.words[1 + p:12 + p] || CASE WHEN p2 < 0.0002 THEN ARRAY[k.rare] ELSE '{}' END
FROM (
    SELECT started_at, call_id, data_key, floor((%(words)s - 12) * random())::int AS p, random() AS p2
    FROM warden.audit_calls WHERE started_at >= %(day)s::date AND started_at < %(day)s::date + 1
) c JOIN made_keys k ON k.id = c.data_key WHERE k.day = %(day)s AND k.tenant %% %(searchable)s = 0
"""


def word(number: int) -> str:
    """Of the vocabulary."""
    return f"word{number}"


def talk(tenant: int, subject: int, number: int) -> str:
    """A conversation's name."""
    return f"talk {tenant} {subject} {number}"


def load(dsn: str, provider: KeyProvider, random: Any, *, rows: int, days: int, last: date) -> None:
    """``rows`` calls over ``days`` days, up to ``last``; indexes but for the primary keys are built afterwards."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute("SET jit = off")
        connection.execute(_KEYS)
        _make_keys(connection, provider, random, [last - timedelta(days=n) for n in range(days)])
        for day in (last - timedelta(days=number) for number in range(days)):
            for parent in ("audit_calls", "audit_terms"):
                connection.execute("SELECT warden.make_partition(%s, %s)", (parent, day))
        with _unindexed(connection), ThreadPoolExecutor(AT_ONCE) as pool:
            made = [
                pool.submit(_one_day, dsn, last - timedelta(days=number), number, rows // days)
                for number in range(days)
            ]
            for each in made:
                each.result()
        connection.execute("VACUUM (ANALYZE) warden.audit_calls, warden.audit_terms, warden.data_keys")


def _one_day(dsn: str, day: date, number: int, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute("SET jit = off")
        _fill_day(connection, day, number, rows)


def _fill_day(connection: psycopg.Connection[Any], day: date, number: int, rows: int) -> None:
    told = {
        "day": day.isoformat(), "number": number, "rows": rows, "tenants": TENANTS, "subjects": SUBJECTS,
        "talks": TALKS, "words": WORDS, "searchable": SEARCHABLE,
    }  # fmt: skip
    client = psycopg.ClientCursor(connection)  # one plan, with what the day is known
    client.execute(_CALLS, told)
    client.execute(_TERMS, told)


@contextmanager
def _unindexed(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Without the secondary indexes; they are built again as they were."""
    found = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'warden'"
        " AND tablename IN ('audit_calls', 'audit_terms') AND indexdef NOT LIKE 'CREATE UNIQUE%'"
    ).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX warden.{name}")
    yield
    connection.execute("SET maintenance_work_mem = '1GB'")
    for _, made in found:
        connection.execute(made.replace(" ON ONLY ", " ON "))


def _make_keys(connection: psycopg.Connection[Any], provider: KeyProvider, random: Any, days: Sequence[date]) -> None:
    vault = Vault(provider, random)
    vocabulary = [word(number) for number in range(WORDS)]
    with (
        connection.cursor() as kept,
        connection.cursor() as made,
    ):
        rows, shown = [], []
        for day in days:
            for tenant in range(TENANTS):
                for subject in range(SUBJECTS):
                    name = f"subject {tenant} {subject}"
                    sealer = vault.sealer(tenant=f"tenant-{tenant}", days=None, day=day, subject=name, call_id="")
                    (row,) = vault.made([sealer.data_key])
                    secret = unwrap(provider, row).secret
                    assert secret is not None
                    vault.stored([row])
                    rows.append(row)
                    talks = [lookup(secret, "conversation", talk(tenant, subject, n)) for n in range(TALKS)]
                    hashes = terms(secret, vocabulary)
                    shown.append((day, tenant, subject, row.id, hashes, terms(secret, [RARE])[0], talks))
        with kept.copy(
            "COPY warden.data_keys (id, tenant, days, day, version, wrapped, subject_sealed, subject_mac) FROM STDIN"
        ) as copy:
            for row in rows:
                copy.write_row(
                    (row.id, row.tenant, row.days, row.day, row.version, row.wrapped, row.subject_sealed,
                     row.subject_mac)
                )  # fmt: skip
        with made.copy("COPY made_keys FROM STDIN") as copy:
            for each in shown:
                copy.write_row(each)
    connection.execute("ANALYZE made_keys")
