"""The policy bundle: a directory read whole into one immutable value, or everything that is wrong with it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel

from policies import checks
from policies.access import Access
from policies.demands import content_faults
from policies.document import (
    BundleDoc,
    CaseDoc,
    CasesDoc,
    ChangeDoc,
    KvDoc,
    ModelDoc,
    ModelsDoc,
    PlansDoc,
    TenantDoc,
)
from policies.engines import read_checkpoint, read_engine
from policies.files import REQUIRED, digest, pack, read_files, unpack
from policies.guards import Joined
from policies.residency import Place
from policies.rule_reading import compile_rules
from policies.rules import GuardRules
from policies.statements import compile_access
from policies.tenant import Tenant, compile_tenant
from policies.validating import validate
from policies.versions import PrefixCache, alias_problems, canary, prefix_cache, version_problems
from policies.yamlfile import Document, Problem, parse, suggest
from sidecar.core.model import Contract, KvProfile, ModelProfile, PoolSize

__all__ = ["Bundle", "Case", "Tenant", "compile_bundle", "load"]

MAX_PROBLEMS: Final = 1000
PIECE_BYTES: Final = 2**16

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Case:
    """A test case and where it stands."""

    file: str
    line: int
    case: CaseDoc


@dataclass(frozen=True, slots=True)
class Bundle:
    """A policy directory as loaded; ``digest`` names exactly the bytes of its files.

    The files themselves are kept as one compressed archive: they are needed once, to be stored, and never by a call.
    """

    digest: str
    hashes: Mapping[str, bytes]  # SHA-256 of each file, by its path
    archive: bytes  # zlib over ``content``
    regions: Mapping[str, str]  # region → jurisdiction
    models: Mapping[str, ModelProfile]
    tenants: Mapping[str, Tenant]
    access: Access
    cases: tuple[Case, ...]
    classes: tuple[str, ...] | None = None  # data classes that bundle.yaml names; None: each tenant names its own
    change: ChangeDoc | None = None
    prefix_caches: Mapping[str, PrefixCache] = field(default_factory=dict)  # by model, of those that have one
    rules: Joined | None = None  # on content
    edges: tuple[float, ...] = ()  # moments at which some answer may change, in order (seconds since the epoch)

    @property
    def files(self) -> dict[str, bytes]:
        """Made anew each time."""
        return unpack(self.content())

    def content(self) -> bytes:
        """The files as one archive, the same bytes for the same digest: what is stored, to answer "why" years later."""
        return zlib.decompress(self.archive)

    def pieces(self) -> Iterator[bytes]:
        """``content`` a little at a time, so that nobody waits while it is being copied."""
        inflating = zlib.decompressobj()
        rest = self.archive
        while piece := inflating.decompress(rest, PIECE_BYTES):
            yield piece
            rest = inflating.unconsumed_tail

    def place(
        self,
        region: str,
        storage_jurisdiction: str,
        telemetry_jurisdiction: str | None,
        further: tuple[str, ...] = (),
    ) -> Place | list[Problem]:
        """A pod's place, in this bundle's terms; what the bundle doesn't know can't be judged, so it is refused."""
        jurisdictions = set(self.regions.values())
        problems = []
        if region not in self.regions:
            problems.append(f"the sidecar's region {region} is not in the bundle{suggest(region, self.regions)}")
        stores = [(name, "database") for name in (storage_jurisdiction, *further)]
        for name, what in (*stores, (telemetry_jurisdiction, "telemetry")):
            if name is not None and name not in jurisdictions:
                problems.append(f"the {what}'s jurisdiction {name} is not in the bundle{suggest(name, jurisdictions)}")
        if problems:
            return [Problem("bundle.yaml", 1, 1, "regions", problem) for problem in problems]
        return Place(region, self.regions[region], storage_jurisdiction, telemetry_jurisdiction, further=further)


class Before(Protocol):
    """What a compilation takes over of an earlier one."""

    @property
    def hashes(self) -> Mapping[str, bytes]: ...

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...


def load(directory: Path, previous: Bundle | None = None) -> Bundle | list[Problem]:
    """Read and compile a directory. Takes about 1 ms a document (YAML with positions); call it off the event loop."""
    found = read_files(directory)
    return found if isinstance(found, list) else compile_bundle(found, previous)


def compile_bundle(
    files: Mapping[str, bytes], previous: Before | None = None, pause: Callable[[], None] = lambda: None
) -> Bundle | list[Problem]:
    """Make a bundle of files, or tell every problem in all of them. Pure.

    With ``previous``, tenants whose file is the same are taken from there. ``pause`` is called after each document that
    was read, so that a thread beside the calls can let them go first.
    """
    hashes = {name: sha256(data).digest() for name, data in files.items()}
    if isinstance(previous, Bundle) and previous.hashes == hashes:
        return previous
    return _Compiler(files, hashes, previous, pause).compile()


class _Compiler:
    """One compilation: collects problems across documents, so that one run shows all of them."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        hashes: Mapping[str, bytes],
        previous: Before | None,
        pause: Callable[[], None],
    ) -> None:
        self._files, self._hashes = files, hashes
        self._pause = pause
        self._problems: list[Problem] = []
        # A tenant's meaning depends on its own file and on these; only where all are equal is it the same.
        shared = [name for name in files if name in REQUIRED or name.startswith("engines/")]
        same = previous is not None and all(previous.hashes.get(name) == hashes[name] for name in shared)
        self._previous = previous if same else None
        self._classes: tuple[str, ...] | None = None
        self._change: ChangeDoc | None = None
        self._caches: dict[str, PrefixCache] = {}

    def compile(self) -> Bundle | list[Problem]:
        for name in REQUIRED:
            if name not in self._files:
                self._problems.append(Problem(name, 1, 1, "", "no such file"))
        regions = self._regions()
        models = self._models()
        plans = self._plans(models)
        tenants = self._tenants(plans, models, regions)
        access = self._access(models)
        rules = self._rules(models, tenants)
        cases = self._cases(regions)
        if self._problems or isinstance(access, list) or isinstance(rules, list):
            return sorted(self._problems, key=lambda p: (p.file, p.line, p.column))[:MAX_PROBLEMS]
        edges = {edge for tenant in tenants.values() for edge in tenant.edges()}
        return Bundle(
            digest=digest(self._files),
            hashes=self._hashes,
            archive=zlib.compress(pack(self._files), 1),
            regions=regions or {},
            models=models or {},
            tenants=tenants,
            access=access,
            cases=cases,
            classes=self._classes,
            change=self._change,
            prefix_caches=self._caches,
            rules=None if rules is None else Joined(rules),
            edges=tuple(sorted(edges)),
        )

    def _document(self, name: str, model: type[Model]) -> tuple[Document, Model] | None:
        self._pause()
        document = parse(self._files[name], name) if name in self._files else []
        if isinstance(document, list):
            self._problems += document
            return None
        found = validate(model, document)
        if isinstance(found, list):
            self._problems += found
            return None
        return document, found

    def _in(self, folder: str) -> list[str]:
        return [name for name in sorted(self._files) if name.startswith(f"{folder}/")]

    def _regions(self) -> dict[str, str] | None:
        """Region → jurisdiction; None where bundle.yaml can't be read (then nothing is said about unknown regions)."""
        read = self._document("bundle.yaml", BundleDoc)
        if read is None:
            return None
        document, found = read
        self._classes = None if found.classes is None else tuple(found.classes)
        self._change = found.change
        regions = {name: region.jurisdiction for name, region in found.regions.items()}
        for name in sorted(set(regions) & set(regions.values())):
            message = "is a jurisdiction too; residency rules couldn't tell which is meant"
            self._problems.append(document.problem(("regions", name), message, at_key=True))
        return regions

    def _models(self) -> dict[str, ModelProfile] | None:
        read = self._document("models.yaml", ModelsDoc)
        if read is None:
            return None
        document, found = read
        models = found.root
        canaries = {name: model.canary for name, model in models.items() if model.canary is not None}
        caches = {name: model.prefix_cache for name, model in models.items() if model.contract is not Contract.GENERIC}
        self._caches = {name: prefix_cache(doc) for name, doc in caches.items()}
        self._problems += version_problems(document, canaries, caches, self._tenant_names())
        return {
            name: ModelProfile(
                name,
                model.contract,
                None if model.kv is None else self._kv(document, name, model.kv),
                model.default_tokens,
                model.max_tokens,
                model.groups,
                model.classification,
                canary(model.canary),
                model.digests,
                self._pool(document, name, model),
                round((model.on_cancel.stops_within or model.on_cancel.runs_on or 0) * 1e9),
                runs_on=model.on_cancel.runs_on is not None,
            )
            for name, model in models.items()
        }

    def _pool(self, document: Document, name: str, model: ModelDoc) -> PoolSize:
        size, kv = model.pool.kv_bytes, model.kv
        if size is not None and kv is not None and kv.bytes_per_token and kv.tokens_per_block:
            block = kv.bytes_per_token * kv.tokens_per_block
            if size < block:
                message = f"is less than one block of the model's KV cache ({block} bytes)"
                key = "kv_memory" if model.pool.kv_fallback is None else "kv_fallback"
                self._problems.append(document.problem((name, "pool", key), message))
        return PoolSize(size, model.pool.concurrency, model.pool.kv_memory == "live", model.pool.engine or "")

    def _kv(self, document: Document, model: str, kv: KvDoc) -> KvProfile | None:
        if kv.file is None:
            assert kv.bytes_per_token is not None
            assert kv.tokens_per_block is not None
            return KvProfile(kv.bytes_per_token, kv.tokens_per_block)
        path = (model, "kv", "checkpoint" if kv.engine_config is None else "engine_config")
        data = self._files.get(kv.file) if kv.file.startswith("engines/") else None
        if data is None:
            hint = suggest(kv.file, self._in("engines"))
            self._problems.append(document.problem(path, f"no such file among the bundle's engines/*.json{hint}"))
            return None
        profile = read_engine(data) if kv.engine_config is not None else read_checkpoint(data, kv)
        if isinstance(profile, str):
            self._problems.append(document.problem(path, profile))
            return None
        return profile

    def _plans(self, models: Mapping[str, ModelProfile] | None) -> PlansDoc | None:
        read = self._document("plans.yaml", PlansDoc)
        if read is None:
            return None
        document, found = read
        self._problems += alias_problems(document, {name: plan.aliases for name, plan in found.root.items()}, models)
        return found

    def _tenant_names(self) -> set[str]:
        """By their files' names, so that one broken document doesn't make a second problem elsewhere."""
        return {Path(name).stem for name in self._in("tenants")}

    def _tenants(
        self, plans: PlansDoc | None, models: Mapping[str, ModelProfile] | None, regions: Mapping[str, str] | None
    ) -> dict[str, Tenant]:
        tenants: dict[str, Tenant] = {}
        for name in self._in("tenants"):
            known = self._known(name)
            if known is not None:
                tenants[known.name] = known
                continue
            read = self._document(name, TenantDoc)
            if read is None:
                continue
            document, doc = read
            if doc.tenant in tenants:
                other = tenants[doc.tenant].document
                self._problems.append(document.problem(("tenant",), f"duplicate tenant, also in {other}"))
            if Path(name).stem != doc.tenant:
                self._problems.append(
                    document.problem(("tenant",), f"should be {Path(name).stem}, as the file is named")
                )
            if regions is not None:
                self._problems += checks.residency_places(document, doc.residency, regions)
            plan = None if plans is None else plans.root.get(doc.plan)
            if plans is not None and plan is None:
                message = f"no such plan in plans.yaml{suggest(doc.plan, plans.root)}"
                self._problems.append(document.problem(("plan",), message))
            try:
                tenant = tenants[doc.tenant] = compile_tenant(name, doc, plan)
            except ValueError as fault:  # what only all guards together are too large for
                self._problems.append(document.problem(("guards",), str(fault), at_key=True))
                continue
            for resolved in (tenant.limits, *(those.limits for those in tenant.later)):
                self._problems += checks.limit_faults(document, doc, resolved, models or {})
            self._problems += dict.fromkeys(checks.key_limits(document, tenant))
            self._problems += content_faults(document, doc, plan)
            self._problems += checks.declared_classes(document, doc, self._classes)
        self._problems += checks.pool_guarantees(tenants, models or {})
        return tenants

    def _known(self, name: str) -> Tenant | None:
        """The tenant as compiled before, where nothing that it depends on has changed."""
        if self._previous is None or self._previous.hashes.get(name) != self._hashes[name]:
            return None
        return self._previous.tenants[Path(name).stem]

    def _access(self, models: Mapping[str, ModelProfile] | None) -> Access | list[Problem]:
        tenants = self._tenant_names()
        groups = None if models is None else {group for model in models.values() for group in model.groups}
        sources = {name: self._files[name] for name in self._in("access")}
        access = compile_access(sources, tenants, groups, self._classes)
        if isinstance(access, list):
            self._problems += access
        return access

    def _rules(
        self, models: Mapping[str, ModelProfile] | None, tenants: Mapping[str, Tenant]
    ) -> GuardRules | list[Problem] | None:
        groups = None if models is None else {group for model in models.values() for group in model.groups}
        sources = {name: self._files[name] for name in self._in("guards")}
        guards = {
            guard.name: tenant.document for tenant in tenants.values() if tenant.guards is not None
            for guard in tenant.guards.guards
        }  # fmt: skip
        rules = compile_rules(sources, self._tenant_names(), groups, self._classes, guards) if sources else None
        if isinstance(rules, list):
            self._problems += rules
        return rules

    def _cases(self, regions: Mapping[str, str] | None) -> tuple[Case, ...]:
        cases: list[Case] = []
        for name in self._in("tests"):
            read = self._document(name, CasesDoc)
            if read is None:
                continue
            document, found = read
            for index, case in enumerate(found.root):
                if regions is not None:
                    self._problems += checks.case_places(document, index, case, regions)
                cases.append(Case(name, document.at((index,)).line, case))
        return tuple(cases)
