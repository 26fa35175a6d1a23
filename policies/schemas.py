"""JSON Schemas of the bundle's documents, for editors: completion and checks while a document is being written."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel

from policies.document import BundleDoc, CasesDoc, ModelsDoc, PlansDoc, TenantDoc

__all__ = ["CEDAR_SCHEMAS", "cedar_schemas", "schemas"]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
CEDAR_SCHEMAS: Final = {"warden.cedarschema": "access/*.cedar", "guards.cedarschema": "guards/*.cedar"}
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


def cedar_schemas() -> dict[str, str]:
    """What the Cedar policies of each folder are checked against, by the schema's file, for Cedar's editor support."""
    return {name: files("policies").joinpath(name).read_text("utf-8") for name in CEDAR_SCHEMAS}
