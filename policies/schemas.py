"""JSON Schemas of the bundle's documents, for editors: completion and checks while a document is being written."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel

from policies.document import BundleDoc, CasesDoc, ModelsDoc, PlansDoc, TenantDoc

__all__ = ["CEDAR_SCHEMA", "cedar_schema", "schemas"]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
CEDAR_SCHEMA: Final = "warden.cedarschema"
_DOCUMENTS: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "bundle.schema.json": (BundleDoc, "bundle.yaml"),
    "models.schema.json": (ModelsDoc, "models.yaml"),
    "plans.schema.json": (PlansDoc, "plans.yaml"),
    "tenant.schema.json": (TenantDoc, "tenants/*.yaml"),
    "cases.schema.json": (CasesDoc, "tests/*.yaml"),
}


def schemas() -> dict[str, dict[str, Any]]:
    """Each kind of document's schema by its file's name; ``x-warden-files`` is the glob of the documents it is for."""
    return {
        name: {"$schema": DIALECT, "x-warden-files": glob, **_standard(model.model_json_schema(mode="validation"))}
        for name, (model, glob) in _DOCUMENTS.items()
    }


def _standard(schema: Any) -> Any:
    """Without what pydantic writes of a check that JSON Schema has no word for: ``gt`` on a text such as 8GiB."""
    match schema:
        case dict():
            return {key: _standard(value) for key, value in schema.items() if key not in {"gt", "ge"}}
        case list():
            return [_standard(value) for value in schema]
        case _:
            return schema


def cedar_schema() -> str:
    """What ``access/*.cedar`` is checked against, for Cedar's own editor support."""
    return files("policies").joinpath(CEDAR_SCHEMA).read_text("utf-8")
