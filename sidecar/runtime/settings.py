"""The sidecar's configuration (warden.yaml): parsed whole, every error reported at once, frozen."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from policies import yamlfile
from policies.document import Name
from policies.units import Duration, Size, parse_duration
from policies.validating import validate
from policies.yamlfile import Problem
from sidecar.runtime.copy_settings import CopySection
from sidecar.runtime.key_settings import MasterKeysSection, https_url
from sidecar.runtime.object_settings import ObjectsSection, TensorStoreSection, place_of_objects
from sidecar.runtime.quota_settings import QuotasSection

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def _address(value: str) -> str:
    match = _ADDRESS.fullmatch(value)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{value!r} is not an address; write HOST:PORT")
    return value


Address = Annotated[str, AfterValidator(_address)]


def _loopback(value: str) -> str:
    """A name is no loopback address: what it resolves to is for others to say."""
    host = value.rpartition(":")[0].strip("[]")
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{value!r} is no loopback address, and whoever reaches it is let in without a credential; "
            "write 127.0.0.1:PORT or [::1]:PORT"
        )
    return value


LoopbackAddress = Annotated[Address, AfterValidator(_loopback)]

Role = Literal["tenant", "operator", "admin"]

Section = TypeVar("Section", bound=BaseModel)


def _named(value: Any) -> Any:
    """Stores have names, which tenants call them by."""
    if isinstance(value, dict):
        words = sorted({"directory", "s3", "jurisdiction", "deadline", "every"} & value.keys())
        if words:
            raise ValueError(f"{', '.join(words)}: give the store a name: copy: {{NAME: {{directory or s3: …}}}}")
        taken = sorted({"none", "required"} & value.keys())
        if taken:
            raise ValueError(f"{taken[0]} is no store's name: tenants say it for what they want of all")
    return value


FURTHER_DATABASES: Final = 2  # beside the pod's own: each has a journal, a shipper with its threads, and 11 series

STORES: Final = 4  # that one journal is copied to: each has a thread
# By name; the first is the one that calls wait for which name none.
Copies = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")], CopySection], BeforeValidator(_named)
]


def journal_of(directory: Path, jurisdiction: str) -> Path:
    """Where the journal for a further database is, in the ``directory`` of the pod's own."""
    return directory / "databases" / jurisdiction


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvidenceSection(_Section):
    """What else says where this is; read again each second. Where it doesn't agree, nothing is let through."""

    node_labels_file: Path | None = None  # key="value" lines (downward API), or JSON: topology.kubernetes.io/region
    cloud_metadata_file: Path | None = None  # JSON: cloud-init's instance-data, or a cloud's own metadata

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.node_labels_file is None and self.cloud_metadata_file is None:
            raise ValueError("names no evidence: write node_labels_file, cloud_metadata_file, or both")
        return self


class SidecarSection(_Section):
    """Who this sidecar is, and where. ``region`` must be one of the bundle's regions."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    region: str
    evidence: EvidenceSection | None = None  # needed to enforce: one piece alone can be a slip of the pen


class TlsSection(_Section):
    """TLS on the tenants' listener. PEM files; rotated by renaming new ones into their place."""

    cert_file: Path  # the chain, leaf first
    key_file: Path
    client_ca_file: Path | None = None  # who may sign client certificates; without it none is asked for
    require_client_certificate: bool = False

    @model_validator(mode="after")
    def _an_authority_to_require_by(self) -> Self:
        if self.require_client_certificate and self.client_ca_file is None:
            raise ValueError("require_client_certificate needs client_ca_file: nobody could be believed")
        return self


class ListenSection(_Section):
    grpc: Address = "127.0.0.1:8011"
    admin: Address = "127.0.0.1:8012"
    tls: TlsSection | None = None  # of ``grpc``


class PrincipalSection(_Section):
    """Whom the calls on a bound listener are made by."""

    tenant: str = Field(min_length=1, max_length=255)
    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    roles: tuple[Role, ...] = Field(default=("tenant",), min_length=1)


class ListenerSection(_Section):
    """A listener for clients that can't send a credential (perf_analyzer): who connects is ``principal``."""

    address: LoopbackAddress
    principal: PrincipalSection
    # All containers of a pod share its loopback, so there the risk must be stated, in these words.
    under_kubernetes: Literal["every container of this pod may use it"] | None = None


class RestrictedSection(_Section):
    """The secret that Triton was started with: ``--grpc-restricted-protocol=CATEGORIES:KEY=SECRET``."""

    key: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    file: Path | None = None
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("write either file or env: where the secret is")
        return self


class TritonSection(_Section):
    grpc: Address = "127.0.0.1:8001"
    metrics: Address = "127.0.0.1:8002"  # read for pools that are `live`, and to see what a cancelled call still holds
    # Its HTTP and metrics ports: looked at only to see whether anybody but this host can reach them.
    other_ports: tuple[Annotated[int, Field(strict=True, gt=0, lt=65536)], ...] = Field((8000, 8002), max_length=8)
    restricted_secret: RestrictedSection | None = None
    tokenizers: dict[str, Path] = Field({}, max_length=256)  # by model: its tokenizer.json, to count prompts with
    model_repository: tuple[Path, ...] = Field((), max_length=16)  # where its model directories can be read from here


class PolicySection(_Section):
    bundle: Path


class IssuerSection(_Section):
    """A JWT issuer and what it may assert. ``jwks`` is a file's path or an https:// (or loopback http://) URL."""

    issuer: str
    audience: tuple[str, ...] = Field(min_length=1)
    jwks: str
    algorithms: tuple[Literal["EdDSA", "ES256", "ES384", "RS256", "PS256"], ...] = Field(min_length=1)
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    subject_claim: str | None = None
    conversation_claim: str | None = None
    data_class_claim: str | None = None  # a text, or a list of at most 8
    tenants: tuple[str, ...] = Field(min_length=1)  # globs
    roles: tuple[str, ...] = ("tenant",)
    role_map: dict[str, str] = {}  # the issuer's names → ours; others count for nothing then, and so does none
    type: str | None = None  # the header's typ, where it must be one
    leeway: Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=60)] = 30.0
    max_lifetime: Duration = 3600.0


class SigningSection(_Section):
    """How ``warden token mint`` signs."""

    issuer: str
    audience: str
    key_file: Path  # PEM, Ed25519 or P-256


class KeysSection(_Section):
    environment: str = Field(default="live", pattern=r"^[a-z0-9]{1,12}$")
    pepper_file: Path
    refresh: Duration = 0.5  # between two looks at the database where no notification comes
    max_age: Duration = 3600.0  # how long they are believed while the database is away


class CertificateSection(_Section):
    """Which client certificates are whose: ``uri`` is a glob over the certificate's one URI (SPIFFE or other)."""

    uri: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://[^*?\[]")
    tenant: str = Field(min_length=1, max_length=255)
    roles: tuple[str, ...] = ("tenant",)


def _distinct(issuers: tuple[IssuerSection, ...]) -> tuple[IssuerSection, ...]:
    """A token names its issuer, and that must say which of the sections judges it."""
    names = [section.issuer for section in issuers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"an issuer may be given once; twice or more: {', '.join(twice)}")
    return issuers


class IdentitySection(_Section):
    certificates: tuple[CertificateSection, ...] = ()  # the first that fits
    issuers: Annotated[tuple[IssuerSection, ...], AfterValidator(_distinct)] = ()
    # How long the list of revoked tokens is believed while the database is away: as long as an issuer's keys are
    # (tokens end by themselves, within their issuer's max_lifetime).
    revocations_max_age: Duration = 86400.0
    snapshot_file: Path | None = None  # keys and revocations, sealed, for a start without the database
    keys: KeysSection | None = None
    signing: SigningSection | None = None


class JournalSection(_Section):
    directory: Path
    key_file: Path  # 32 bytes, never on the journal's volume
    keys_directory: Path | None = None  # further ones for its segments, by id, and which is in use (`rotate-key`)
    mode: Literal["batch", "strict"] = "batch"
    segment_bytes: Size = 64 * 2**20
    max_bytes: Size = 8 * 2**30
    min_free: Size = 256 * 2**20
    keep: Duration = 86400.0
    # Parts of its space at which it is short of it, counting what may not go yet; and that one tenant may hold.
    warn_at: float = Field(default=0.5, gt=0, lt=1)
    shed_at: float = Field(default=0.8, gt=0, lt=1)
    tenant_share: float = Field(default=0.5, gt=0, le=1)
    # Of one prompt or output kept in its record. An entry holds at most 64 MiB, with the framing of each part.
    content_bytes: Size = Field(default=2**20, le=16 * 2**20)
    copies: Copies = Field({}, alias="copy", max_length=STORES)  # left out: what is not shipped is here alone

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.warn_at > self.shed_at:
            raise ValueError(f"warn_at {self.warn_at} comes after shed_at {self.shed_at}")
        return self


class DatabaseSection(_Section):
    """``dsn`` is the commands'; serve and ship use that in ``sidecar_dsn_file``, where `warden db enroll` wrote it."""

    dsn: str = Field(default="", repr=False)  # may hold the password
    sidecar_dsn_file: Path | None = None
    jurisdiction: str
    key_file: Path | None = None  # 32 bytes that stored content is sealed under; without it, the journal's

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.dsn and self.sidecar_dsn_file is None:
            raise ValueError("names no database: write dsn, or sidecar_dsn_file in a sidecar's own configuration")
        return self


class WitnessSection(_Section):
    """Who cosigns the fleet's heads (C2SP tlog-witness); somebody in another trust domain."""

    url: Annotated[str, AfterValidator(https_url)]
    key: str = Field(pattern=r"^[^+\s]+\+[0-9a-f]{8}\+[A-Za-z0-9+/]{44}$")  # its verifier key, NAME+HASH+KEY


class AnchorSection(_Section):
    """Where the fleet's log's heads are kept besides the database, where its administrators cannot change them."""

    file: Path | None = None  # appended to; on a volume of its own, or one that is copied away
    objects: ObjectsSection | None = None  # each head under a name of its own, never written over
    witnesses: tuple[WitnessSection, ...] = Field((), max_length=8)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.file is None and self.objects is None and not self.witnesses:
            raise ValueError("anchors nothing: write file, objects, witnesses, or several of them")
        return self


class FurtherDatabaseSection(_Section):
    """A database of another jurisdiction than the pod's, for tenants whose ``residency.records`` names it.

    Nothing is shared with any other: neither its root key, nor the tenants' master keys, nor its anchor.
    """

    dsn: str = Field(default="", repr=False)  # may hold the password
    sidecar_dsn_file: Path | None = None
    key_file: Path
    keys: MasterKeysSection = MasterKeysSection()
    anchor: AnchorSection | None = None
    copies: Copies = Field({}, alias="copy", max_length=STORES)  # of its journal: as audit.journal.copy is the pod's
    objects: TensorStoreSection | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.dsn and self.sidecar_dsn_file is None:
            raise ValueError("names no database: write dsn, or sidecar_dsn_file in a sidecar's own configuration")
        return self


class AuditSection(_Section):
    """``database`` is the pod's own: in its jurisdiction, with API keys and all that is no tenant's record."""

    journal: JournalSection
    database: DatabaseSection
    keys: MasterKeysSection = MasterKeysSection()  # of ``database``
    anchor: AnchorSection | None = None  # of ``database``
    objects: TensorStoreSection | None = None  # of ``database``; None: no tensor's bytes are kept
    databases: dict[Name, FurtherDatabaseSection] = Field({}, max_length=FURTHER_DATABASES)  # by jurisdiction

    @property
    def keys_directory(self) -> Path:
        root = self.database.key_file or self.journal.key_file
        return self.keys.directory or root.parent / "tenant-keys"

    @property
    def jurisdictions(self) -> tuple[str, ...]:
        """Those that there is a database of, the pod's own first."""
        return (self.database.jurisdiction, *self.databases)

    def of(self, jurisdiction: str) -> Self:
        """What is configured of one of ``jurisdictions``, as if it were the only one.

        Its journal too: each database has one of its own, the further ones in the directory of the pod's, and an equal
        part of its space.
        """
        sharers = len(self.jurisdictions)
        shared: dict[str, Any] = {
            "max_bytes": self.journal.max_bytes // sharers, "segment_bytes": self.journal.segment_bytes // sharers
        }  # fmt: skip
        if jurisdiction == self.database.jurisdiction:
            journal = self.journal.model_copy(update=shared)
            return self.model_copy(update={"databases": {}, "journal": journal})
        found = self.databases[jurisdiction]
        database = DatabaseSection(
            dsn=found.dsn,
            sidecar_dsn_file=found.sidecar_dsn_file,
            jurisdiction=jurisdiction,
            key_file=found.key_file,
        )
        shared |= {"directory": journal_of(self.journal.directory, jurisdiction), "copies": found.copies}
        own: dict[str, Any] = {
            "database": database, "keys": found.keys, "anchor": found.anchor, "databases": {},
            "journal": self.journal.model_copy(update=shared),
        }  # fmt: skip
        own["objects"] = found.objects
        return self.model_copy(update=own)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        """What two jurisdictions shared would lie in both."""
        own = self.database.jurisdiction
        if own in self.databases:
            raise ValueError(f"databases.{own}: that is the jurisdiction of database; write it there alone")
        taken: dict[tuple[str, ...], str] = {}
        for name in self.jurisdictions:
            objects = self.of(name).objects
            if objects is not None and objects.jurisdiction != name:
                words = f"{objects.jurisdiction}, but what it is given is of {name}, which nothing of it leaves"
                raise ValueError(f"{'' if name == own else f'databases.{name}.'}objects.jurisdiction: {words}")
            for what, parts in _own_parts(self.of(name)).items():
                other = taken.setdefault((what, *parts), name)
                if other != name:
                    raise ValueError(f"databases.{name}: {what} {parts[0]} is that of {other}; each needs its own")
            keys = self.of(name).keys
            if keys.cloud is not None and keys.cloud.jurisdiction != name:
                words = f"{keys.cloud.jurisdiction}, but it is for records of {name}"
                raise ValueError(f"keys.{keys.cloud_name}.jurisdiction: {words}")
        return self


def _own_parts(section: AuditSection) -> dict[str, tuple[str, ...]]:
    """What belongs to one jurisdiction alone, by what it is; the first of each is a name to tell it by."""
    database, keys, anchor = section.database, section.keys, section.anchor
    found: dict[str, tuple[str, ...]] = {
        "key_file": (str(database.key_file or section.journal.key_file),),
        "keys.directory": (str(section.keys_directory),),
    }
    if database.dsn:
        found["dsn"] = ("", database.dsn)  # it may hold a password, so it isn't told
    if database.sidecar_dsn_file is not None:
        found["sidecar_dsn_file"] = (str(database.sidecar_dsn_file),)
    if keys.vault is not None:
        found["keys.vault"] = (keys.vault.prefix, keys.vault.address, keys.vault.mount)
    if keys.cloud is not None:
        found[f"keys.{keys.cloud_name}"] = (keys.cloud.key,)
    if anchor is not None and anchor.file is not None:
        found["anchor.file"] = (str(anchor.file),)
    if section.objects is not None:
        found["objects"] = place_of_objects(section.objects)
    if anchor is not None and anchor.objects is not None:
        found["anchor.objects"] = place_of_objects(anchor.objects)
    return found


class OtlpSection(_Section):
    """Where spans go, and whose law that place is under (a tenant's ``residency.telemetry`` must allow it)."""

    endpoint: str
    jurisdiction: str
    protocol: Literal["grpc", "http"] = "grpc"


class TelemetrySection(_Section):
    otlp: OtlpSection | None = None
    ratio: float = Field(default=1.0, ge=0, le=1)  # of root traces that are sampled
    max_tenants: int = Field(default=60, ge=1, le=1000)  # series by tenant; the rest count as "(other)"


class BoundsSection(_Section):
    message_bytes: Size = 256 * 2**20
    buffer_bytes: Size = 2**30  # all requests and responses in flight; no tenant may hold more than half of it
    stream_bytes: Size = 64 * 2**20  # responses queued for one client; beyond it the client is cut off
    metadata_bytes: Size = 60 * 1024
    streams_per_connection: int = Field(default=1024, ge=1)
    calls_per_stream: int = Field(default=1024, ge=1)  # in flight at once on one ModelStreamInfer
    blocked_write: Duration = 30.0  # a client that takes nothing, or stops amid a message, for this long is cut off
    call_timeout: Duration = 600.0  # where the client sets no deadline
    grace: Duration = 30.0  # for calls in flight on SIGTERM


class Settings(_Section):
    """warden.yaml, whole."""

    sidecar: SidecarSection
    mode: Literal["enforce", "observe"] = "enforce"
    listen: ListenSection = ListenSection()
    listeners: tuple[ListenerSection, ...] = Field(default=(), max_length=16)
    triton: TritonSection = TritonSection()
    policy: PolicySection
    identity: IdentitySection
    audit: AuditSection
    telemetry: TelemetrySection = TelemetrySection()
    quotas: QuotasSection = QuotasSection()
    bounds: BoundsSection = BoundsSection()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those that tenants call."""
        return (self.listen.grpc, *(each.address for each in self.listeners))

    def of(self, jurisdiction: str) -> Self:
        """The same with one of ``audit.jurisdictions`` as if it were the only one."""
        return self.model_copy(update={"audit": self.audit.of(jurisdiction)})

    @model_validator(mode="after")
    def _certificates_that_can_be_shown(self) -> Self:
        tls = self.listen.tls
        if self.identity.certificates and (tls is None or tls.client_ca_file is None):
            raise ValueError("identity.certificates needs listen.tls.client_ca_file: else no certificate is asked for")
        return self

    @model_validator(mode="after")
    def _ports_of_their_own(self) -> Self:
        """A bound listener is told apart by its port, whatever address a call came to."""
        taken = {"listen.grpc": _port(self.listen.grpc), "listen.admin": _port(self.listen.admin)}
        for n, listener in enumerate(self.listeners):
            port = _port(listener.address)
            other = next((name for name, known in taken.items() if known == port), None)
            if other is not None:
                raise ValueError(f"listeners[{n}].address: port {port} is that of {other}")
            taken[f"listeners[{n}].address"] = port
        return self


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class SettingsError(Exception):
    """warden.yaml cannot be used; ``problems`` holds every mistake with its file, line and column."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def load(path: Path) -> Settings:
    """Read, check and freeze a configuration; relative paths in it are taken from its own directory.

    Raises ``SettingsError`` with all that is wrong, never only the first.
    """
    document = yamlfile.read(path)
    if isinstance(document, list):
        raise SettingsError(document)
    settings = validate(Settings, document)
    if isinstance(settings, list):
        raise SettingsError(settings)
    return _anchored(settings, path.resolve().parent)


def _anchored_item(item: Any, base: Path) -> Any:
    if isinstance(item, Path):
        return base / item  # an absolute one stays as it is
    return _anchored(item, base) if isinstance(item, BaseModel) else item


def _anchored(section: Section, base: Path) -> Section:
    """``section`` with every relative path, at any depth, made absolute under ``base``."""
    changes: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Path) and not value.is_absolute():
            changes[name] = base / value
        elif isinstance(value, BaseModel):
            changes[name] = _anchored(value, base)
        elif isinstance(value, dict):
            changes[name] = {key: _anchored_item(item, base) for key, item in value.items()}
        elif isinstance(value, tuple):
            changes[name] = tuple(_anchored_item(item, base) for item in value)
        elif name == "jwks" and "://" not in value and not Path(value).is_absolute():
            changes[name] = str(base / value)
    return section.model_copy(update=changes)
