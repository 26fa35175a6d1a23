"""The options that narrow which records are meant, one meaning for all commands that take them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sidecar.cli.common import Exit, fail
from sidecar.cli.times import TIME_HELP
from sidecar.identity.keys import ID_LENGTH

__all__ = [
    "CallOption", "ConversationOption", "DataClassOption", "KeyOption", "ModelOption", "OutcomeOption",
    "PrincipalOption", "RegionOption", "RuleOption", "SinceOption", "TenantOption", "UntilOption", "key_id", "one_of",
]  # fmt: skip

TenantOption = Annotated[str | None, typer.Option(help="Only this tenant's.")]
SinceOption = Annotated[str | None, typer.Option(help=f"From when. {TIME_HELP}")]
UntilOption = Annotated[str | None, typer.Option(help="Until when, that moment not included; written as --since is.")]
ModelOption = Annotated[str | None, typer.Option(help="The model, by its name at Triton.")]
OutcomeOption = Annotated[str | None, typer.Option(help="completed, refused, failed, cancelled or aborted.")]
PrincipalOption = Annotated[
    str | None, typer.Option(help="Who called: a token's subject, an API key's name, a certificate's URI.")
]
KeyOption = Annotated[str | None, typer.Option(help="An API key's id: the 12 characters in its middle.")]
ConversationOption = Annotated[str | None, typer.Option(help="What x-warden-conversation said.")]
DataClassOption = Annotated[str | None, typer.Option(help="What x-data-class said, such as phi.")]
RuleOption = Annotated[str | None, typer.Option(help="The rule that decided, or a guard that found something.")]
RegionOption = Annotated[str | None, typer.Option(help="Where the sidecar was, such as eu-west-1.")]
CallOption = Annotated[
    str | None, typer.Option(help="A call's id (x-warden-call-id), or a stream's: then all its messages.")
]


def one_of(option: str, value: str | None, members: type[StrEnum]) -> None:
    """Exit 2 where ``value`` is none of them: a slip of the pen must not look like an answer of no records."""
    if value is not None and value not in set(members):
        fail(Exit.USAGE, f"{option} {value!r} is none of {', '.join(members)}")


def key_id(key: str | None) -> None:
    """Exit 2 where it is a whole key, which is not told again, nor kept with the record of this asking."""
    if key is not None and len(key) > ID_LENGTH:
        fail(Exit.USAGE, "--key takes the 12 characters in the middle of the key, its id, and never the key itself")
