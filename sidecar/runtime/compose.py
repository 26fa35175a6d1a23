"""The composition root: builds the rooms from one configuration and wires them; used by both wires."""

from __future__ import annotations

import hmac
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from audit.journal import Journal
from audit.recorder import JournalRecorder
from audit.seal import KeyFault, load_root_key
from audit.segments import Origin
from policies.source import BundleSource, Pod
from policies.tenant import Tenant
from policies.tenant import copies_of as stores_asked
from sidecar.core.governor import Governor, Mode, Ports
from sidecar.core.model import Durability, Principal, Quantity, Secret
from sidecar.identity.denials import DenyBook
from sidecar.identity.files import load_pepper
from sidecar.identity.identify import CertificateRule, Identifier
from sidecar.identity.jwks import JwksRefresher, JwksSource, source_for
from sidecar.identity.jwt import Issuer, TokenVerifier
from sidecar.identity.keys import KeyRing
from sidecar.identity.persist import SnapshotFile
from sidecar.identity.refresh import KeyRefresher
from sidecar.quotas.leases import ROUND_S, LeaseKeeper, Posture
from sidecar.quotas.local import LocalQuotas
from sidecar.quotas.pool import Pool
from sidecar.quotas.reach import Access, connect
from sidecar.quotas.shared import SharedQuotas
from sidecar.runtime import clock, location, restricted, tls
from sidecar.runtime.copy_settings import CopyError
from sidecar.runtime.digests import ModelDigests
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.ids import RandomIds
from sidecar.runtime.journals import TimedFiles, copies_of, open_journals
from sidecar.runtime.quota_settings import RedisSection, RedisTlsSection
from sidecar.runtime.settings import IssuerSection, KeysSection, Settings
from sidecar.telemetry import logs
from sidecar.telemetry.instruments import PrometheusInstruments
from sidecar.transports.live import LiveRpcs
from sidecar.transports.upstream import Restricted
from sidecar.triton.isolation import Isolation
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.methods import METHODS
from sidecar.triton.reader import TritonReader
from sidecar.triton.sequences import SequenceTable
from sidecar.triton.tokens import Counter, load_counter

IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # set in every container of a pod


_LEASES: Final = logging.getLogger("warden.leases")


class StartError(Exception):
    """The sidecar cannot start; the message names what and where, one mistake a line."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Everything one sidecar is made of; nothing runs yet but the journals' own threads.

    ``journals`` by the jurisdiction of their databases, the pod's own first.
    """

    settings: Settings
    governor: Governor
    journals: Mapping[str, Journal]
    recorder: JournalRecorder
    policies: BundleSource
    quotas: LocalQuotas
    leases: LeaseKeeper | None
    ids: RandomIds
    instruments: PrometheusInstruments
    ring: KeyRing | None
    denied: DenyBook
    keys: KeyRefresher
    live: LiveRpcs
    jwks: tuple[JwksSource, ...]
    models: ModelBook
    jwks_refresher: JwksRefresher
    restricted: Restricted | None
    digests: ModelDigests

    @property
    def journal(self) -> Journal:
        """That of the pod's own database."""
        return self.journals[self.settings.audit.database.jurisdiction]


def check(settings: Settings, environment: Mapping[str, str] = os.environ) -> BundleSource:
    """The bundle at this pod's place; raises ``StartError`` with all of its problems, and those of the listeners."""
    otlp = settings.telemetry.otlp
    database = settings.audit.database.jurisdiction
    doubt = location.look(settings.sidecar).doubt
    further = tuple(settings.audit.databases)
    pod = Pod(settings.sidecar.region, database, otlp.jurisdiction if otlp else None, doubt, further)
    source = BundleSource.open(settings.policy.bundle, pod, time.time())
    problems = list(map(str, source)) if isinstance(source, list) else []
    if settings.mode == "enforce" and settings.sidecar.evidence is None:
        problems.append("sidecar.evidence: needed in mode enforce: what else says where this is, beside sidecar.region")
    if isinstance(source, BundleSource) and source.current().place.jurisdiction != database:
        here = f"{pod.region} lies in {source.current().place.jurisdiction}, which no record leaves"
        problems.append(f"audit.database.jurisdiction: {database}, but {here}")
    problems += _copies_elsewhere(settings)
    if isinstance(source, BundleSource):
        problems += _key_problems(settings, source.current().bundle.regions)
    if settings.listen.tls is not None:
        problems += tls.faults(settings.listen.tls)
    problems += _listener_problems(settings, None if isinstance(source, list) else source, environment)
    secret = restricted.load(settings.triton.restricted_secret, environment)
    if isinstance(secret, str):
        problems.append(secret)
    if isinstance(source, list) or problems:
        raise StartError("\n".join(problems))
    return source


def _key_problems(settings: Settings, regions: Mapping[str, str]) -> list[str]:
    """Keys of a cloud where the bundle says that the region is another's. One that it doesn't name is as stated."""
    problems = []
    for jurisdiction in settings.audit.jurisdictions:
        keys = settings.audit.of(jurisdiction).keys
        region = "" if keys.cloud is None else keys.cloud.region
        if regions.get(region, jurisdiction) != jurisdiction:
            words = f"{region} lies in {regions[region]}, says bundle.yaml, but what it wraps seals records of"
            problems.append(f"audit.keys.{keys.cloud_name}.key: {words} {jurisdiction}")
    return problems


def _copies_elsewhere(settings: Settings) -> Iterator[str]:
    """A tenant's copies are never in another jurisdiction than its records."""
    own = settings.audit.database.jurisdiction
    for place in settings.audit.jurisdictions:
        where = "audit.journal" if place == own else f"audit.databases.{place}"
        for name, copy in settings.audit.of(place).journal.copies.items():
            if copy.jurisdiction != place:
                words = f"{copy.jurisdiction}, but the records are of {place}, which no copy of them leaves"
                yield f"{where}.copy.{name}.jurisdiction: {words}"


def unkept(settings: Settings, tenants: Mapping[str, Tenant]) -> list[tuple[str, str]]:
    """What tenants ask to be kept, for which this sidecar has no store: the log's event, and in words."""
    copies = [("copy.unknown_store", words) for words in _unkept_copies(settings, tenants)]
    return copies + [("tensors.no_store", words) for words in _unkept_tensors(settings, tenants)]


def _unkept_copies(settings: Settings, tenants: Mapping[str, Tenant]) -> list[str]:
    """Tenants that ask for copies which no database of this sidecar has: the calls concerned are refused here."""
    held = {name for each in settings.audit.jurisdictions for name in settings.audit.of(each).journal.copies}
    told = []
    for name, tenant in sorted(tenants.items()):
        classes = [stores_asked(each.copies) for each in tenant.audit_classes.values() if each.copies is not None]
        asked = {store for copies in (tenant.audit.copies or (), *classes) for store in copies}
        lacks = sorted(store or "required" for store in asked if store not in held and (store or not held))
        if lacks:
            told.append(f"tenant {name}: audit.copy: {', '.join(lacks)}: no such store here, which refuses its calls")
    return told


def _unkept_tensors(settings: Settings, tenants: Mapping[str, Tenant]) -> list[str]:
    """Tenants that want tensors' bytes kept, where this sidecar has no store for any: records have digests alone."""
    if any(settings.audit.of(each).objects is not None for each in settings.audit.jurisdictions):
        return []
    words = "audit.tensors: no audit.objects here, so of tensors only lengths and digests are kept"
    return [f"tenant {name}: {words}" for name, tenant in sorted(tenants.items()) if tenant.audit.tensors is not None]


def _listener_problems(settings: Settings, source: BundleSource | None, environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the listeners that are bound to one principal."""
    problems = []
    for n, listener in enumerate(settings.listeners):
        tenant, place = listener.principal.tenant, f"listeners[{n}] {listener.address}"
        if source is not None and tenant not in source.current().bundle.tenants:
            problems.append(f"{place}: principal.tenant: the bundle has no tenant {tenant!r}")
        if IN_KUBERNETES in environment and listener.under_kubernetes is None:
            problems.append(
                f"{place}: every container of this pod could call as {tenant}/{listener.principal.name}; where that is "
                'meant, write under_kubernetes: "every container of this pod may use it"'
            )
    return problems


def named_problems(settings: Settings) -> list[str]:
    """What `build` would refuse of what is named: pepper, issuers' keys, Redis's files, tokenizers. Asks no server."""
    problems: list[str] = []
    looks: list[Callable[[], object]] = [partial(_ring, settings)]
    looks += [partial(_quotas, settings), partial(_counters, settings), partial(_copies, settings)]
    looks += [partial(_issuer, section) for section in settings.identity.issuers]
    for look in looks:
        try:
            look()
        except StartError as fault:
            problems += str(fault).splitlines()
    return problems


def build(settings: Settings) -> Rooms:
    """Open the journal and wire the rooms. Raises ``StartError``; then nothing is left open."""
    policies = check(settings)
    jurisdiction = policies.current().place.jurisdiction
    secret = _restricted(settings)
    ring = _ring(settings)
    book = DenyBook(max_age=settings.identity.revocations_max_age)
    issuers = [_issuer(section) for section in settings.identity.issuers]
    jwks = tuple(source for _, source in issuers)
    instruments = PrometheusInstruments(METHODS.values(), max_tenants=settings.telemetry.max_tenants)
    file, key = _snapshot_file(settings, jurisdiction), id_key(settings)
    otlp = settings.telemetry.otlp
    origin = Origin(
        settings.sidecar.name,
        settings.sidecar.region,
        jurisdiction,
        location.look(settings.sidecar).evidence,
        "" if otlp is None else otlp.jurisdiction,
    )
    quotas, leases = _quotas(settings)
    journals = open_journals(settings, origin, TimedFiles(instruments))
    if isinstance(journals, str):
        raise StartError(journals)
    (_, journal), *further = journals.items()
    ids = RandomIds(settings.telemetry.ratio)
    digests = ModelDigests(settings.triton.model_repository)
    recorder = JournalRecorder(
        journal,
        durability=Durability(settings.audit.journal.mode),
        content_bytes=settings.audit.journal.content_bytes,
        new_id=lambda: ids.call(clock.now()),
        now=clock.now,
        model_digest=digests.of,
        further=dict(further),
    )
    certificates = [CertificateRule(each.uri, each.tenant, each.roles) for each in settings.identity.certificates]
    identity = Identifier(TokenVerifier(issuers, book), ring, certificates, _bound(settings))
    models = ModelBook()
    sequences = SequenceTable(
        Secret(secrets.token_bytes(32)), call_timeout=settings.bounds.call_timeout,
        pool=lambda: Pool(Quantity.CONCURRENCY, 0),
    )  # fmt: skip
    isolation = Isolation(models, key, sequences)
    ports = Ports(identity, policies, TritonReader(isolation, _counters(settings)), quotas, recorder, instruments)
    governor = Governor(ports, mode=Mode(settings.mode))
    live = LiveRpcs()
    dsn = sidecar_dsn(settings.audit.database)
    if isinstance(dsn, KeyFault):
        raise StartError(dsn.detail)
    refresher = KeyRefresher(
        dsn, ring, book, refresh=_freshness(settings).refresh, clock=time.time,
        monotonic=time.monotonic, file=file,
        changed=lambda: live.end_withdrawn(lambda credential: governor.revoked(credential, clock.now())),
    )  # fmt: skip
    return Rooms(
        settings=settings,
        governor=governor,
        journals=journals,
        recorder=recorder,
        policies=policies,
        quotas=quotas,
        leases=leases,
        ids=ids,
        instruments=instruments,
        ring=ring,
        denied=book,
        keys=refresher,
        live=live,
        jwks=jwks,
        models=models,
        jwks_refresher=JwksRefresher(jwks, time.time),
        restricted=secret,
        digests=digests,
    )


def _bound(settings: Settings) -> dict[str, Principal]:
    """By listener's address, for whom it speaks."""
    return {
        each.address: Principal(
            each.principal.tenant, each.principal.name, "listener", roles=frozenset(each.principal.roles)
        )
        for each in settings.listeners
    }


def _restricted(settings: Settings) -> Restricted | None:
    found = restricted.load(settings.triton.restricted_secret, os.environ)
    if isinstance(found, str):  # it went between two looks
        raise StartError(found)
    return found


def _counters(settings: Settings) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    problems: list[str] = []
    for model, path in settings.triton.tokenizers.items():
        counter = load_counter(path)
        if isinstance(counter, str):
            problems.append(f"triton.tokenizers.{model}: {path} {counter}")
        else:
            found[model] = counter
    if problems:
        raise StartError("\n".join(problems))
    return found


def _quotas(settings: Settings) -> tuple[LocalQuotas, LeaseKeeper | None]:
    section = settings.quotas.redis
    if section is None:
        return LocalQuotas(), None
    try:
        run = connect(redis_access(section))
    except ImportError as fault:
        raise StartError("quotas.redis: needs the extra redis: pip install 'triton-warden[redis]'") from fault
    except OSError as fault:
        raise StartError(f"quotas.redis: {fault.filename}: {fault.strerror}") from fault
    except ValueError as fault:
        raise StartError(f"quotas.redis: {fault}") from fault
    fair = Posture(section.posture) is Posture.FAIR_SHARE
    quotas = SharedQuotas(round_s=ROUND_S, fair=fair, pods=section.pods)
    keeper = LeaseKeeper(
        quotas, run, pod=f"{settings.sidecar.name}-{secrets.token_hex(4)}", prefix=settings.sidecar.region,
        posture=Posture(section.posture), monotonic=time.monotonic, between=random.uniform, told=_tell_leases,
        key_told=_tell_key, alone_s=section.alone,
    )  # fmt: skip
    return quotas, keeper


def redis_access(section: RedisSection) -> Access:
    tls = section.tls or RedisTlsSection()
    return Access(section.url, section.username, section.password_file, tls.ca_file, tls.cert_file, tls.key_file)


def _tell_leases(why: str) -> None:
    if why:
        logs.event(_LEASES, logging.WARNING, "leases.redis_away", detail=why[:200])
    else:
        logs.event(_LEASES, logging.INFO, "leases.redis_back")


def _tell_key(key: str, usable: bool) -> None:  # noqa: FBT001 — a callback
    if usable:
        logs.event(_LEASES, logging.INFO, "leases.key_usable", detail=key)
    else:
        logs.event(_LEASES, logging.ERROR, "leases.key_unusable", detail=key)


def _ring(settings: Settings) -> KeyRing | None:
    section = settings.identity.keys
    if section is None:
        return None
    return KeyRing(_pepper(section), section.environment, max_age=section.max_age, region=settings.sidecar.region)


def _freshness(settings: Settings) -> KeysSection:
    """How often the database is looked at: as configured for keys, or by default."""
    return settings.identity.keys or KeysSection(pepper_file=Path())


def id_key(settings: Settings) -> Secret:
    """What request ids are mapped under: of the journal's root key, so it outlives a restart and is a pod's own."""
    root = load_root_key(settings.audit.journal.key_file)
    if isinstance(root, KeyFault):
        raise StartError(f"audit.journal.key_file: {root.detail}")
    return Secret(hmac.digest(root.reveal(), b"triton-warden request ids", "sha256"))


def _snapshot_file(settings: Settings, jurisdiction: str) -> SnapshotFile:
    journal = settings.audit.journal
    root = load_root_key(journal.key_file)
    if isinstance(root, KeyFault):
        raise StartError(f"audit.journal.key_file: {root.detail}")
    path = settings.identity.snapshot_file or journal.directory / "identity.snapshot"
    context = f"{jurisdiction} {_freshness(settings).environment}"
    return SnapshotFile(path, root, context, secrets.token_bytes)


def _pepper(section: KeysSection) -> Secret:
    pepper = load_pepper(section.pepper_file)
    if isinstance(pepper, str):
        raise StartError(f"identity.keys.pepper_file: {pepper}")
    return pepper


def _issuer(section: IssuerSection) -> tuple[Issuer, JwksSource]:
    source = source_for(section.jwks, section.algorithms, time.monotonic)
    if isinstance(source, str):
        raise StartError(f"identity.issuers: {section.issuer}: jwks: {source}")
    fields: Sequence[str] = [name for name in type(section).model_fields if name != "jwks"]
    return Issuer(**{name: getattr(section, name) for name in fields}), source


def _copies(settings: Settings) -> None:
    try:
        copies_of(settings)
    except CopyError as fault:
        raise StartError(str(fault)) from fault
