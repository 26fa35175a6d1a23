"""The tenants' master keys as the configuration says."""

from __future__ import annotations

import secrets
from typing import assert_never

from sqlalchemy import Engine

from audit.awskms import AwsKey, AwsKms
from audit.filekeys import Cover, FileKeys
from audit.gcpkms import GcpKey, GcpKms
from audit.keyring import Keyring, held_in
from audit.keys import KeyProvider
from audit.transit import Transit, TransitKeys
from sidecar.runtime.key_settings import AwsSection, GcpSection, MasterKeysSection
from sidecar.runtime.settings import Settings

__all__ = ["key_store", "keys_of"]


def keys_of(settings: Settings, engine: Engine) -> KeyProvider:
    """The tenants' master keys, beside what the database holds. Raises OSError where a CA's file can't be read."""
    return Keyring(key_store(settings), held_in(engine))


def key_store(settings: Settings) -> FileKeys | TransitKeys:
    """Who keeps them. Raises OSError where a CA's file can't be read, KeyFaultError where an extra isn't installed."""
    section, directory = settings.audit.keys, settings.audit.keys_directory
    vault = section.vault
    if vault is None:
        return FileKeys(directory, secrets.token_bytes, _cover(section))
    place = Transit(vault.address, vault.token_file, vault.mount, vault.prefix, vault.ca_file)
    return TransitKeys(place, directory)


def _cover(section: MasterKeysSection) -> Cover | None:
    match section.cloud:
        case AwsSection() as aws:
            return AwsKms(AwsKey(aws.key, aws.endpoint, aws.ca_file))
        case GcpSection() as gcp:
            return GcpKms(GcpKey(gcp.key, gcp.endpoint))
        case None:
            return None
        case _ as never:
            assert_never(never)
