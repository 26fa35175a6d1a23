"""bundle.yaml as written: regions and their jurisdictions, data classes, and who made the bundle what it is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.document.fields import DataClass, Doc, Name

__all__ = ["BundleDoc", "ChangeDoc", "DataClassDoc", "RegionDoc"]


class RegionDoc(Doc):
    """A place, and the legal area it lies in."""

    jurisdiction: Name


class DataClassDoc(Doc):
    """A data class that tenants may declare, in words."""

    about: Annotated[str, Field(max_length=1000)] = ""


class ChangeDoc(Doc):
    """Who made this bundle what it is, and where that was reviewed: kept with each record of its load."""

    author: Annotated[str, Field(min_length=1, max_length=200)]
    reference: Annotated[str, Field(max_length=200)] = ""  # a commit, a pull request


class BundleDoc(Doc):
    """bundle.yaml: every region of the bundle, and every data class (left out: each tenant names its own)."""

    regions: dict[Name, RegionDoc] = Field(min_length=1)
    classes: dict[DataClass, DataClassDoc] | None = Field(default=None, max_length=256)
    change: ChangeDoc | None = None
