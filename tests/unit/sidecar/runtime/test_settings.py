"""warden.yaml: read whole, every mistake told at its place, paths taken from its own directory."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.runtime.key_settings import VaultSection
from sidecar.runtime.settings import Settings, SettingsError, load
from tests.support.config import document, write

BAD = inspect.cleandoc("""
    sidecar:
      name: "pod 1"
      region: eu-west-1
    mode: enforced
    listen:
      grpc: 127.0.0.1
      admin: 127.0.0.1:99999
    policy:
      bundel: bundle
    identity:
      issuers:
        - issuer: https://issuer.example
          audience: []
          jwks: keys.json
          algorithms: [HS256]
          tenants: [acme]
    audit:
      journal:
        directory: journal
        key_file: key
        max_bytes: 8GB
        keep: 1
      database:
        dsn: postgresql://
    bounds:
      calls_per_stream: 0
""")
LISTENER: dict[str, Any] = {"address": "127.0.0.1:8015", "principal": {"tenant": "acme", "name": "perf"}}
# Line, column and key of each mistake in it; how each is worded is policies.yamlfile's own affair.
PLACES = [
    ("2:9", "sidecar.name"),
    ("4:7", "mode"),
    ("6:9", "listen.grpc"),
    ("7:10", "listen.admin"),
    ("8:1", "policy.bundle"),
    ("9:3", "policy.bundel"),
    ("13:7", "identity.issuers[0].audience"),
    ("15:20", "identity.issuers[0].algorithms[0]"),
    ("21:16", "audit.journal.max_bytes"),
    ("22:11", "audit.journal.keep"),
    ("23:3", "audit.database.jurisdiction"),
    ("26:21", "bounds.calls_per_stream"),
]


def test_every_mistake_is_told_at_once_at_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "warden.yaml"
    path.write_text(BAD)
    with pytest.raises(SettingsError) as fault:
        load(path)
    told = [str(problem) for problem in fault.value.problems]
    for place, key in PLACES:
        assert any(line.startswith(f"{path}:{place}: {key}:") for line in told), (place, key, told)
    assert str(fault.value).splitlines() == told


@pytest.mark.parametrize("text", ["", "[1, 2]", "sidecar: [", "a: &x 1\nb: *x"])
def test_what_is_no_configuration_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "warden.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as fault:
        load(path)
    assert str(path) in str(fault.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load(tmp_path / "warden.yaml")


def test_sizes_and_durations_are_read_as_people_write_them(tmp_path: Path) -> None:
    bounds = {"message_bytes": "64MiB", "buffer_bytes": 1024, "grace": "90s", "call_timeout": "2m"}
    settings = load(write(tmp_path, bounds=bounds))
    assert settings.bounds.message_bytes == 64 * 2**20
    assert settings.bounds.buffer_bytes == 1024
    assert (settings.bounds.grace, settings.bounds.call_timeout) == (90.0, 120.0)
    assert settings.bounds.blocked_write == 30.0


def test_paths_are_taken_from_the_files_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    monkeypatch.chdir("/")
    settings = load(path)
    assert settings.audit.journal.directory == tmp_path / "journal"
    assert settings.audit.journal.key_file == tmp_path / "keys" / "journal.key"
    assert settings.audit.database.key_file is None
    assert settings.policy.bundle.is_absolute()
    assert settings.identity.issuers[0].jwks == str(tmp_path / "keys" / "jwks.json")
    monkeypatch.chdir(tmp_path)
    assert load(Path("warden.yaml")) == settings


def test_an_issuer_is_given_once(tmp_path: Path) -> None:
    identity = document(tmp_path)["identity"]
    identity["issuers"] *= 2
    with pytest.raises(SettingsError, match=r"identity\.issuers: an issuer may be given once"):
        load(write(tmp_path, identity=identity))


@pytest.mark.parametrize(("size", "good"), [("16MiB", True), (16 * 2**20 + 1, False), ("1GiB", False), (0, False)])
def test_what_is_kept_of_a_content_fits_an_entry(tmp_path: Path, size: str | int, good: bool) -> None:
    audit = document(tmp_path)["audit"]
    audit["journal"]["content_bytes"] = size
    path = write(tmp_path, audit=audit)
    if good:
        assert load(path).audit.journal.content_bytes == 16 * 2**20
    else:
        with pytest.raises(SettingsError, match=r"audit\.journal\.content_bytes"):
            load(path)


@pytest.mark.parametrize("url", ["https://issuer.example/jwks", "http://127.0.0.1:9/jwks", "/etc/jwks.json"])
def test_a_jwks_url_or_whole_path_is_left_as_it_is(tmp_path: Path, url: str) -> None:
    identity = document(tmp_path)["identity"]
    identity["issuers"][0]["jwks"] = url
    assert load(write(tmp_path, identity=identity)).identity.issuers[0].jwks == url


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("127.0.0.1:8011", True),
        ("[::1]:8011", True),
        ("triton.default.svc:8001", True),
        ("localhost:65535", True),
        ("localhost:65536", False),
        ("localhost:0", False),
        (":8011", False),
        ("localhost", False),
        ("::1:8011", False),
        ("127.0.0.1:8011\n", False),
        ("127.0.0.1:٨٠", False),
    ],
)
def test_an_address_is_host_and_port(tmp_path: Path, address: str, good: bool) -> None:
    path = write(tmp_path, triton={"grpc": address})
    if good:
        assert load(path).triton.grpc == address
    else:
        with pytest.raises(SettingsError, match="is not an address"):
            load(path)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://vault.internal:8200", ""),
        ("http://127.0.0.1:8200/", ""),
        ("https://vault.internal:8200/team", "the engine's place is mount"),
        ("http://vault.internal:8200", "is no https://HOST"),
    ],
)
def test_a_vault_is_a_server_and_tls_or_this_host(address: str, told: str) -> None:
    vault = {"address": address, "token_file": "token"}
    if not told:
        assert VaultSection.model_validate(vault).address == address
        return
    with pytest.raises(ValueError, match=told):
        VaultSection.model_validate(vault)


KMS_KEY = "arn:aws:kms:eu-central-1:123456789012:key/1f0c9e3a-7b1d-4f3e-9b2a-0123456789ab"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"endpoint": "https://kms.vpc.internal", "ca_file": "ca.pem"}, ""),
        ({"key": KMS_KEY.replace("aws:", "aws-cn:")}, ""),
        ({"key": "arn:aws:kms:eu-central-1:123456789012:alias/warden"}, "an alias could be pointed at another key"),
        ({"key": "1f0c9e3a-7b1d-4f3e-9b2a-0123456789ab"}, "is no arn:aws:kms:REGION:ACCOUNT:key/ID"),
        ({"key": KMS_KEY.replace("key/", "key/mrk-")}, "multi-Region key"),
        ({"jurisdiction": "US"}, r"keys\.aws\.jurisdiction: US, but it is for records of EU"),
        ({"endpoint": "http://kms.internal"}, "is no https://HOST"),
    ],
)
def test_a_kms_key_is_one_key_in_one_region_of_the_databases_jurisdiction(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    audit = document(tmp_path)["audit"]
    audit["keys"] = {"aws": {"key": KMS_KEY, "jurisdiction": "EU"} | changes}
    path = write(tmp_path, audit=audit)
    if told:
        with pytest.raises(SettingsError, match=told):
            load(path)
        return
    aws = load(path).audit.keys.aws
    assert aws is not None
    assert aws.ca_file in {None, tmp_path / "ca.pem"}


CLOUD_KEY = "projects/p-1/locations/europe-west3/keyRings/warden/cryptoKeys/tenants"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"endpoint": "https://cloudkms.internal:8443"}, ""),
        ({"key": CLOUD_KEY.replace("europe-west3", "europe")}, ""),  # several regions of one place, as it is stated
        ({"key": CLOUD_KEY.replace("europe-west3", "global")}, "lies in global, which is no place"),
        ({"key": CLOUD_KEY + "/cryptoKeyVersions/1"}, "is no projects/P/locations/L/keyRings/R/cryptoKeys/K"),
        ({"jurisdiction": "US"}, r"keys\.gcp\.jurisdiction: US, but it is for records of EU"),
        ({"endpoint": "http://cloudkms.internal"}, "is no https://HOST"),
    ],
)
def test_a_key_of_google_lies_in_one_place_of_the_databases_jurisdiction(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    audit = document(tmp_path)["audit"]
    audit["keys"] = {"gcp": {"key": CLOUD_KEY, "jurisdiction": "EU"} | changes}
    path = write(tmp_path, audit=audit)
    if told:
        with pytest.raises(SettingsError, match=told):
            load(path)
        return
    keys = load(path).audit.keys
    assert keys.cloud is not None
    assert (keys.cloud_name, keys.cloud.region) == ("gcp", keys.cloud.key.split("/")[3])


def test_master_keys_have_one_keeper_and_no_two_jurisdictions_share_a_kms_key(tmp_path: Path) -> None:
    audit = document(tmp_path)["audit"]
    aws = {"key": KMS_KEY, "jurisdiction": "EU"}
    vault = {"address": "https://vault.internal", "token_file": "token"}
    with pytest.raises(SettingsError, match="one of vault, aws and gcp"):
        load(write(tmp_path, audit=audit | {"keys": {"aws": aws, "vault": vault}}))
    further = {
        "dsn": "postgresql://us/w",
        "key_file": "us.key",
        "keys": {"directory": "us", "aws": aws | {"jurisdiction": "US"}},
    }
    with pytest.raises(SettingsError, match=r"keys\.aws arn:.* is that of EU"):
        load(write(tmp_path, audit=audit | {"keys": {"aws": aws}, "databases": {"US": further}}))


@pytest.mark.parametrize("section", [name for name in Settings.model_fields if name != "mode"])
def test_an_unknown_key_of_any_section_is_a_mistake(tmp_path: Path, section: str) -> None:
    changed = document(tmp_path)
    if section == "listeners":
        changed[section], section_of = [LISTENER | {"surprise": 1}], "listeners[0]"
    else:
        changed.setdefault(section, {})["surprise"] = 1
        section_of = section
    with pytest.raises(SettingsError, match=re.escape(f"{section_of}.surprise: unknown key")):
        load(write(tmp_path, **{section: changed[section]}))


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = load(write(tmp_path))
    with pytest.raises(ValidationError):
        settings.mode = "observe"
    with pytest.raises(ValidationError):
        settings.bounds.grace = 1.0


def test_a_leeway_may_be_none_at_all_but_not_longer_than_a_minute(tmp_path: Path) -> None:
    identity = document(tmp_path)["identity"]
    identity["issuers"][0]["leeway"] = "0s"
    assert load(write(tmp_path, identity=identity)).identity.issuers[0].leeway == 0
    identity["issuers"][0]["leeway"] = "61s"
    with pytest.raises(SettingsError, match="leeway"):
        load(write(tmp_path, identity=identity))


def test_certificates_need_an_authority_to_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "warden.yaml"
    rules = "identity:\n  certificates: [{uri: 'spiffe://a/*', tenant: acme}]\n"
    rest = (
        "sidecar: {name: a, region: r}\npolicy: {bundle: b}\naudit:\n  journal: {directory: j, key_file: k}\n"
        "  database: {dsn: d, jurisdiction: EU}\n"
    )
    path.write_text(rules + rest)
    with pytest.raises(SettingsError, match="client_ca_file"):
        load(path)
    tls = "listen: {tls: {cert_file: c, key_file: k, client_ca_file: a}}\n"
    path.write_text(rules + rest + tls)
    listen = load(path).listen.tls
    assert listen is not None
    assert listen.cert_file == tmp_path / "c"
    path.write_text(rules.replace("spiffe://a/*", "*") + rest + tls)
    with pytest.raises(SettingsError, match="uri"):  # a rule for everyone is none
        load(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]"])
def test_a_bound_listener_is_on_loopback(tmp_path: Path, host: str) -> None:
    (listener,) = load(write(tmp_path, listeners=[LISTENER | {"address": f"{host}:8015"}])).listeners
    assert (listener.principal.tenant, listener.principal.name) == ("acme", "perf")
    assert (listener.principal.roles, listener.under_kubernetes) == (("tenant",), None)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "localhost", "[::ffff:a00:1]", "example.com"])
def test_a_bound_listener_elsewhere_is_refused_with_the_reason(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingsError, match=r"listeners\[0\]\.address.*without a credential.*127\.0\.0\.1:PORT"):
        load(write(tmp_path, listeners=[LISTENER | {"address": f"{host}:8015"}]))


@pytest.mark.parametrize(
    ("ports", "told"),
    [
        ((18011,), r"listeners\[0\]\.address: port 18011 is that of listen\.grpc"),
        ((18012,), r"listeners\[0\]\.address: port 18012 is that of listen\.admin"),
        ((8015, 8015), r"listeners\[1\]\.address: port 8015 is that of listeners\[0\]\.address"),
    ],
)
def test_a_bound_listener_has_its_port_for_itself(tmp_path: Path, ports: tuple[int, ...], told: str) -> None:
    """Whatever the addresses: it is told apart by its port."""
    listeners = [LISTENER | {"address": f"127.0.0.{n + 2}:{port}"} for n, port in enumerate(ports)]
    with pytest.raises(SettingsError, match=told):
        load(write(tmp_path, listeners=listeners))


@pytest.mark.parametrize(
    ("principal", "told"),
    [
        ({"tenant": "acme"}, "principal.name"),
        ({"tenant": "acme", "name": "a b"}, "principal.name"),
        ({"tenant": "acme", "name": "perf", "roles": []}, "principal.roles"),
        ({"tenant": "acme", "name": "perf", "roles": ["root"]}, "principal.roles"),
    ],
)
def test_who_a_listener_is_bound_to_is_whole(tmp_path: Path, principal: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(write(tmp_path, listeners=[LISTENER | {"principal": principal}]))


def test_the_risk_under_kubernetes_is_stated_in_these_words_or_not_at_all(tmp_path: Path) -> None:
    words = "every container of this pod may use it"
    assert load(write(tmp_path, listeners=[LISTENER | {"under_kubernetes": words}])).listeners[0].under_kubernetes
    for other in (True, "yes", ""):
        with pytest.raises(SettingsError, match="under_kubernetes"):
            load(write(tmp_path, listeners=[LISTENER | {"under_kubernetes": other}]))


# --- several databases --------------------------------------------------------------------------------------------

FURTHER: dict[str, Any] = {"dsn": "postgresql://us.example/warden", "key_file": "us/root.key"}


def with_databases(tmp_path: Path, **databases: dict[str, Any]) -> Path:
    return write(tmp_path, audit=document(tmp_path)["audit"] | {"databases": databases})


def test_each_jurisdiction_is_as_if_it_were_the_only_one(tmp_path: Path) -> None:
    anchored = FURTHER | {"anchor": {"file": "us/fleet.notes"}, "keys": {"backups": "7d"}}
    whole = load(with_databases(tmp_path, US=anchored))
    assert whole.audit.jurisdictions == ("EU", "US")
    eu, us = whole.of("EU").audit, whole.of("US").audit
    assert (eu.database, eu.keys, eu.anchor) == (whole.audit.database, whole.audit.keys, None)
    assert eu.jurisdictions == ("EU",)
    assert (us.database.jurisdiction, us.database.dsn) == ("US", FURTHER["dsn"])
    assert us.database.key_file == tmp_path / "us" / "root.key"
    assert us.keys_directory == tmp_path / "us" / "tenant-keys"
    assert us.anchor is not None
    assert us.anchor.file == tmp_path / "us" / "fleet.notes"
    # Each has a journal of its own, in an equal part of the space.
    journal = whole.audit.journal
    assert (eu.journal.directory, us.journal.directory) == (
        journal.directory, journal.directory / "databases" / "US"
    )  # fmt: skip
    assert eu.journal.max_bytes == us.journal.max_bytes == journal.max_bytes // 2
    assert eu.journal.segment_bytes == us.journal.segment_bytes == journal.segment_bytes // 2


@pytest.mark.parametrize(
    ("databases", "told"),
    [
        ({"EU": FURTHER}, "databases.EU: that is the jurisdiction of database; write it there alone"),
        ({"US": {"key_file": "us/root.key"}}, "names no database: write dsn, or sidecar_dsn_file"),
        ({"US": {"dsn": "postgresql://us.example/warden"}}, "audit.databases.US.key_file"),
        ({"US": FURTHER | {"key_file": "keys/journal.key"}}, "databases.US: key_file keys/journal.key is that of EU"),
        ({"US": FURTHER | {"key_file": "keys/us.key"}}, "databases.US: keys.directory keys/tenant-keys is that of EU"),
        ({"US": FURTHER, "CH": FURTHER | {"key_file": "ch/root.key"}}, "databases.CH: dsn  is that of US"),
        ({"US": FURTHER | {"jurisdiction": "US"}}, "audit.databases.US.jurisdiction: unknown key"),
        ({"U S": FURTHER}, "audit.databases"),
        (dict.fromkeys(("A", "B", "C", "D"), FURTHER), "audit.databases"),
    ],
)
def test_what_two_jurisdictions_would_share_is_refused(tmp_path: Path, databases: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as fault:
        load(with_databases(tmp_path, **databases))
    assert told in str(fault.value)
    assert "us.example" not in str(fault.value)  # a DSN may hold a password
