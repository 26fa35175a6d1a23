"""The bundle's documents as written: one pydantic model a kind of file; unknown keys are refused."""

from __future__ import annotations

from policies.document.cases import DECIDABLE, CaseDoc, CasesDoc
from policies.document.content import GuardDoc, HoldBackDoc, RedactDoc
from policies.document.fields import DATA_CLASS_LENGTH, MODEL_NAME_LENGTH, Name, TenantName
from policies.document.models import KvDoc, ModelDoc, ModelsDoc
from policies.document.places import BundleDoc, ChangeDoc, DataClassDoc, RegionDoc
from policies.document.plans import LimitsDoc, NarrowDoc, PlanDoc, PlansDoc, RequestsDoc
from policies.document.tenants import (
    AuditClassDoc,
    AuditDoc,
    ClassDoc,
    GrantDoc,
    KeyDoc,
    ResidencyDoc,
    TenantDoc,
    TensorsDoc,
)

__all__ = [
    "DATA_CLASS_LENGTH",
    "DECIDABLE",
    "MODEL_NAME_LENGTH",
    "AuditClassDoc",
    "AuditDoc",
    "BundleDoc",
    "CaseDoc",
    "CasesDoc",
    "ChangeDoc",
    "ClassDoc",
    "DataClassDoc",
    "GrantDoc",
    "GuardDoc",
    "HoldBackDoc",
    "KeyDoc",
    "KvDoc",
    "LimitsDoc",
    "ModelDoc",
    "ModelsDoc",
    "Name",
    "NarrowDoc",
    "PlanDoc",
    "PlansDoc",
    "RedactDoc",
    "RegionDoc",
    "RequestsDoc",
    "ResidencyDoc",
    "TenantDoc",
    "TenantName",
    "TensorsDoc",
]
