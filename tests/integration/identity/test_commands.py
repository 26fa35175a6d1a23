"""`warden keys` and `warden token` as an operator runs them, on a real Postgres."""

from __future__ import annotations

import json
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sidecar.cli import keys as keys_command
from sidecar.cli import token as token_command
from sidecar.core.model import Principal
from sidecar.identity import keys, mint
from sidecar.identity.jwks import source_for
from sidecar.identity.jwt import Issuer, TokenVerifier
from sidecar.identity.keys import KeyRing
from sidecar.identity.refresh import KeyRefresher
from tests.support.bundle import write_bundle
from tests.support.postgres import query
from tests.support.store import wait_until

pytestmark = pytest.mark.integration

CONFIG = """
sidecar: {{name: test, region: eu-west-1}}
policy: {{bundle: bundle}}
identity:
  keys: {{pepper_file: pepper}}
  signing: {{issuer: "https://warden.example", audience: warden, key_file: signing.pem}}
  issuers:
    - issuer: "https://warden.example"
      audience: [warden]
      jwks: jwks.json
      algorithms: [EdDSA]
      tenants: ["*"]
      max_lifetime: 1h
audit:
  journal: {{directory: journal, key_file: journal.key}}
  database: {{dsn: "{dsn}", jurisdiction: EU}}
"""
PEPPER = b"a pepper of more than sixteen bytes\n"


def configure(directory: Path, dsn: str) -> Path:
    (directory / "pepper").write_bytes(PEPPER)
    (directory / "pepper").chmod(0o600)
    path = directory / "warden.yaml"
    path.write_text(CONFIG.format(dsn=dsn))
    return path


@pytest.fixture
def config(dsn: str, tmp_path: Path) -> Path:
    return configure(tmp_path, dsn)


def run(app: Any, config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--config", str(config)])


def answer(app: Any, config: Path, *arguments: str) -> dict[str, Any]:
    result = run(app, config, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_life_of_a_key(config: Path, dsn: str) -> None:
    made = answer(
        keys_command.app, config, "issue", "--tenant", "acme", "--name", "laptop", "--expires", "90d",
        "--models", "chat,embed-*",
    )  # fmt: skip
    assert set(made) == {"id", "key", "tenant", "name", "expires_at"}
    parsed = keys.parse(made["key"].encode())
    assert parsed is not None
    assert (parsed.environment, parsed.id) == ("live", made["id"])

    shown = answer(keys_command.app, config, "show", made["id"])
    assert (shown["state"], shown["models"], shown["roles"]) == ("active", ["chat", "embed-*"], ["tenant"])
    assert made["key"] not in str(shown)

    rotated = answer(keys_command.app, config, "rotate", made["id"], "--grace", "24h")
    assert (rotated["id"], rotated["name"]) == (made["id"], "laptop")
    assert rotated["key"] != made["key"]
    again = run(keys_command.app, config, "rotate", made["id"])
    assert again.exit_code == 1
    assert "being rotated already" in again.stderr

    pepper = keys.read_pepper(PEPPER)
    assert not isinstance(pepper, str)
    ring = KeyRing(pepper, "live", max_age=60)
    refresher = KeyRefresher(dsn, ring, refresh=0.1, clock=time.time, monotonic=time.monotonic)
    refresher.start()
    try:
        for each in (made, rotated):
            wait_until(lambda each=each: isinstance(ring.identify(each["key"].encode(), time.time()), Principal))
    finally:
        refresher.stop()

    revoked = answer(keys_command.app, config, "revoke", made["id"])
    assert revoked["state"] == "revoked"
    listed = run(keys_command.app, config, "list", "--tenant", "acme", "--json")
    assert [json.loads(line)["state"] for line in listed.stdout.splitlines()] == ["revoked"]

    events = query(dsn, "SELECT kind, actor, detail->>'key', detail::text FROM warden.audit_events ORDER BY id")
    assert [row[0] for row in events] == ["key.issued", "key.rotated", "key.revoked"]
    assert {row[2] for row in events} == {made["id"]}
    assert all(row[1].startswith("cli:") for row in events)
    assert not any(secret["key"][-49:] in row[3] for row in events for secret in (made, rotated))


def test_for_people_the_secret_alone_is_on_stdout(config: Path) -> None:
    result = run(keys_command.app, config, "issue", "--tenant", "acme", "--name", "laptop")
    assert keys.parse(result.stdout.strip().encode()) is not None
    assert "shown this once" in result.stderr
    listed = run(keys_command.app, config, "list")
    assert "laptop" in listed.stdout
    assert result.stdout.strip() not in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nobody"], 1),
        (["revoke", "nobody"], 1),
        (["rotate", "nobody"], 1),
        (["rotate", "nobody", "--grace", "soon"], 2),
        (["issue", "--tenant", "", "--name", "x"], 2),
        (["issue", "--tenant", "acme", "--name", "a\nb"], 2),
        (["issue", "--tenant", "acme", "--name", "x", "--expires", "90"], 2),
        (["issue", "--tenant", "acme", "--name", "x", "--expires", "99999999999d"], 2),
        (["issue", "--tenant", "acme", "--name", "x", "--expires", "9999999d"], 2),
        (["issue", "--tenant", "acme", "--name", "x", "--models", "a,,b"], 2),
        (["issue", "--tenant", "acme"], 2),
    ],
)
def test_exit_codes(config: Path, arguments: list[str], code: int) -> None:
    result = run(keys_command.app, config, *arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["show", "rotate", "revoke"])
@pytest.mark.parametrize("cut", [0, 4])  # whole, or without its prefix
def test_a_whole_key_is_not_told_again(config: Path, command: str, cut: int) -> None:
    made = answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", "laptop")
    result = run(keys_command.app, config, command, made["key"][cut:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give the 12 characters in the middle" in result.stderr
    assert made["key"][-49:] not in result.stderr
    assert answer(keys_command.app, config, "show", made["id"])["state"] == "active"


@pytest.mark.parametrize(
    ("app", "arguments"),
    [
        (keys_command.app, ["issue", "--tenant", "acme", "--name", "x", "--roles", "tenant,king"]),
        (token_command.app, ["mint", "--tenant", "acme", "--subject", "x", "--roles", "king"]),
    ],
)
def test_roles_that_do_not_exist_are_refused(config: Path, app: Any, arguments: list[str]) -> None:
    result = run(app, config, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "warden: --roles: no role 'king'; there are tenant, operator, admin\n"


def test_a_database_that_refuses_or_never_answers_is_exit_3_within_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        began = time.monotonic()
        result = run(keys_command.app, configure(tmp_path, f"host=127.0.0.1 port={port} password=hush"), "list")
        assert time.monotonic() - began < 30
    assert result.exit_code == 3
    assert "does not answer" in result.stderr
    assert "hush" not in result.output
    result = run(keys_command.app, configure(tmp_path, f"host=127.0.0.1 port={port}"), "list")
    assert result.exit_code == 3


def test_an_unprepared_database_says_what_to_run(postgres: Any, tmp_path: Path) -> None:
    result = run(keys_command.app, configure(tmp_path, postgres.create_database()), "list")
    assert result.exit_code == 3
    assert "warden db upgrade" in result.stderr


@pytest.mark.parametrize(("pepper", "said"), [(None, "No such file"), (b"short", "shorter than")])
def test_a_bad_pepper_is_exit_2(config: Path, pepper: bytes | None, said: str) -> None:
    path = config.parent / "pepper"
    path.unlink()
    if pepper is not None:
        path.write_bytes(pepper)
        path.chmod(0o600)
    result = run(keys_command.app, config, "list")
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("name", ["pepper", "signing.pem"])
def test_a_secret_that_others_can_read_is_exit_2(config: Path, name: str) -> None:
    assert run(token_command.app, config, "init", "--jwks", str(config.parent / "jwks.json")).exit_code == 0
    mint_one = ("mint", "--tenant", "acme", "--subject", "alice")
    app, arguments = (keys_command.app, ("list",)) if name == "pepper" else (token_command.app, mint_one)
    path = config.parent / name
    assert run(app, config, *arguments).exit_code == 0
    path.chmod(0o644)
    refused = run(app, config, *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{path}: mode 0644" in refused.stderr


def test_a_token_from_the_command_line_verifies(tmp_path: Path) -> None:
    config = configure(tmp_path, "host=/nowhere")
    missing = run(token_command.app, config, "mint", "--tenant", "acme", "--subject", "alice")
    assert missing.exit_code == 2
    assert "warden token init" in missing.stderr
    jwks = tmp_path / "jwks.json"
    for _ in range(2):  # the second time keeps the key
        made = run(token_command.app, config, "init", "--jwks", str(jwks))
        assert made.exit_code == 0, made.output
    assert stat.S_IMODE((tmp_path / "signing.pem").stat().st_mode) == 0o600

    minted = answer(
        token_command.app, config, "mint", "--tenant", "acme", "--subject", "alice", "--ttl", "5m", "--scope", "chat"
    )
    assert set(minted) == {"token", "expires_at"}
    source = source_for(str(jwks), ("EdDSA",), time.monotonic)
    assert not isinstance(source, str)
    assert source.refresh(time.time())
    issuer = Issuer("https://warden.example", ("warden",), ("EdDSA",), ("*",), type="at+jwt")
    found = TokenVerifier([(issuer, source)]).identify(minted["token"].encode(), time.time())
    assert isinstance(found, Principal)
    assert (found.tenant, found.name) == ("acme", "alice")


@pytest.mark.parametrize("ttl", ["0s", "2h", "400d", "tomorrow"])
def test_a_lifetime_that_no_verifier_would_take_is_not_minted(tmp_path: Path, ttl: str) -> None:
    config = configure(tmp_path, "host=/nowhere")
    run(token_command.app, config, "init", "--jwks", str(tmp_path / "jwks.json"))
    result = run(token_command.app, config, "mint", "--tenant", "acme", "--subject", "alice", "--ttl", ttl)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_credential_for_a_tenant_that_no_bundle_names_is_made_with_a_warning(config: Path, tmp_path: Path) -> None:
    """It may be that the sidecars' bundle is newer than this machine's, so it is no refusal."""
    write_bundle(tmp_path)
    run(token_command.app, config, "init", "--jwks", str(tmp_path / "jwks.json"))
    wanted = f'tenant acmee is not named by {tmp_path / "bundle"}, so calls for it are refused; did you mean "acme"?'
    for app, arguments in (
        (keys_command.app, ("issue", "--tenant", "acmee", "--name", "n")),
        (token_command.app, ("mint", "--tenant", "acmee", "--subject", "s")),
    ):
        made = run(app, config, *arguments)
        assert (made.exit_code, wanted in made.stderr) == (0, True), made.output
        assert made.stdout.count("\n") == 1
        assert "Warning" not in run(app, config, *(word.replace("acmee", "acme") for word in arguments)).stderr


def test_a_key_for_a_model_that_its_tenant_is_not_given_is_made_with_a_warning(config: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path)
    issue = ("issue", "--tenant", "six-slots", "--name", "n", "--models")
    made = run(keys_command.app, config, *issue, "echo,ecco")
    assert made.exit_code == 0, made.output
    wanted = f"tenant six-slots is given no model ecco by {tmp_path / 'bundle'}, so calls for it are refused"
    assert [line for line in made.stderr.splitlines() if line.startswith("Warning")] == [
        f'Warning: {wanted}; did you mean "echo"?'
    ]
    assert "Warning" not in run(keys_command.app, config, *issue, "echo,slow").stderr


def test_the_scopes_of_a_key_are_shown_and_kept(config: Path) -> None:
    made = answer(
        keys_command.app, config, "issue", "--tenant", "acme", "--name", "n", "--methods", "ModelInfer,ModelReady",
        "--regions", "eu-west-1", "--cidr", "10.0.0.0/8,2001:db8::/32", "--not-before", "2h",
    )  # fmt: skip
    assert set(made) == {"id", "key", "tenant", "name", "expires_at"}  # DESIGN §6: the shape that programs read
    shown = answer(keys_command.app, config, "show", made["id"])
    assert shown["methods"] == ["ModelInfer", "ModelReady"]
    assert shown["regions"] == ["eu-west-1"]
    assert shown["networks"] == ["10.0.0.0/8", "2001:db8::/32"]
    assert shown["state"] == "pending"
    assert [step["kind"] for step in shown["history"]] == ["key.issued"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--methods", "ModelInfer,Nothing"],
        ["--cidr", "10.0.0.1/8"],
        ["--cidr", "anywhere"],
        ["--not-before", "2027-01-01T00:00:00"],
        ["--not-before", "T"],
        ["--not-before", "soon"],
    ],
)
def test_a_scope_that_cannot_be_is_exit_2(config: Path, wrong: list[str]) -> None:
    result = run(keys_command.app, config, "issue", "--tenant", "acme", "--name", "n", *wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


def test_a_key_is_let_expire_now_or_later(config: Path, dsn: str) -> None:
    made = answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", "n")
    later = answer(keys_command.app, config, "expire", made["id"], "--when", "2099-01-01T00:00:00Z")
    assert (later["state"], later["expires_at"]) == ("active", "2099-01-01T00:00:00Z")
    assert answer(keys_command.app, config, "expire", made["id"])["state"] == "expired"
    again = answer(keys_command.app, config, "expire", made["id"])
    assert [step["kind"] for step in again["history"]] == ["key.issued", "key.expired", "key.expired"]
    assert run(keys_command.app, config, "expire", made["id"], "--when", "1h").exit_code == 1  # no way back
    assert run(keys_command.app, config, "expire", "nosuchkey000").exit_code == 1
    kinds = query(dsn, "SELECT kind FROM warden.audit_events ORDER BY id")
    assert kinds == [("key.issued",), ("key.expired",), ("key.expired",)]


def test_tokens_are_revoked_by_jti_and_by_tenant(config: Path, dsn: str) -> None:
    one = ("revoke", "--issuer", "https://i.example", "--jti", "7")
    assert answer(token_command.app, config, *one) == {"issuer": "https://i.example", "jti": "7", "new": True}
    assert answer(token_command.app, config, *one)["new"] is False
    every = answer(token_command.app, config, "revoke", "--tenant", "acme", "--issued-before", "now")
    assert every == {"tenant": "acme", "issued_before": "now", "new": True}
    assert query(dsn, "SELECT kind, detail->>'jti', detail->>'tenant' FROM warden.audit_events ORDER BY id") == [
        ("token.revoked", "7", None),
        ("token.revoked", None, "acme"),
    ]


@pytest.mark.parametrize(
    "wrong", [[], ["--jti", "7"], ["--tenant", "acme"], ["--tenant", "a", "--issuer", "i", "--jti", "7"]]
)
def test_half_a_revocation_is_exit_2(config: Path, wrong: list[str]) -> None:
    assert run(token_command.app, config, "revoke", *wrong).exit_code == 2


def verifies(directory: Path, token: str) -> bool:
    source = source_for(str(directory / "jwks.json"), ("EdDSA", "ES256"), time.monotonic)
    assert not isinstance(source, str)
    source.refresh(time.time())
    issuer = Issuer("https://warden.example", ("warden",), ("EdDSA", "ES256"), ("*",))
    return isinstance(TokenVerifier([(issuer, source)]).identify(token.encode(), time.time()), Principal)


def test_signing_keys_rotate_and_old_ones_verify_until_they_are_removed(tmp_path: Path) -> None:
    config = configure(tmp_path, "host=/nowhere")
    jwks = ("--jwks", str(tmp_path / "jwks.json"))
    said = ("mint", "--tenant", "acme", "--subject", "s")
    assert run(token_command.app, config, "init", *jwks).exit_code == 0
    tokens = [answer(token_command.app, config, *said)["token"]]
    for _ in range(2):
        assert run(token_command.app, config, "rotate", *jwks, "--wait", "0s").exit_code == 0
        tokens.append(answer(token_command.app, config, *said)["token"])
    assert [verifies(tmp_path, token) for token in tokens] == [True] * 3
    kids = [member["kid"] for member in json.loads((tmp_path / "jwks.json").read_text())["keys"]]
    assert len(set(kids)) == 3
    assert stat.S_IMODE((tmp_path / "signing.pem").stat().st_mode) == 0o600
    assert not (tmp_path / "signing.pem.next").exists()
    assert run(token_command.app, config, "retire", kids[2], *jwks).exit_code == 1  # it signs
    assert run(token_command.app, config, "retire", "none", *jwks).exit_code == 1
    assert run(token_command.app, config, "retire", kids[0], *jwks).exit_code == 0
    assert [verifies(tmp_path, token) for token in tokens] == [False, True, True]


def test_a_kid_that_looks_like_an_option_is_retired(tmp_path: Path) -> None:
    """Old keys and other tools' have such kids: a thumbprint is base64url, and begins with any of its 64 characters."""
    config = configure(tmp_path, "host=/nowhere")
    jwks = tmp_path / "jwks.json"
    assert run(token_command.app, config, "init", "--jwks", str(jwks)).exit_code == 0
    own = json.loads(jwks.read_text())["keys"]
    for kid in ("-GlCY8XW2oMkvvhBhSuHG", "--lCY8XW2oMkvvhBhSuHG", "-h", "-"):
        jwks.write_text(json.dumps({"keys": [*own, {**own[0], "kid": kid}]}))
        assert run(token_command.app, config, "retire", kid, "--jwks", str(jwks)).exit_code == 0
        assert json.loads(jwks.read_text())["keys"] == own
    assert run(token_command.app, config, "retire", "kid", "--jwkz", str(jwks)).exit_code == 2


def test_a_rotation_that_was_interrupted_goes_on_with_the_key_it_had_made(tmp_path: Path) -> None:
    config = configure(tmp_path, "host=/nowhere")
    jwks = ("--jwks", str(tmp_path / "jwks.json"))
    assert run(token_command.app, config, "init", *jwks).exit_code == 0
    made = mint.generate_key()
    mint.write_private(tmp_path / "signing.pem.next", made)
    assert run(token_command.app, config, "rotate", *jwks, "--wait", "0s").exit_code == 0
    assert (tmp_path / "signing.pem").read_bytes() == made
    (tmp_path / "jwks.json").write_text("{}")
    assert run(token_command.app, config, "rotate", *jwks, "--wait", "0s").exit_code == 2


def test_making_keys_again_leaves_the_published_set_whole(tmp_path: Path) -> None:
    """Init is repeated by whoever automates: the old key of a rotation must verify what it signed all the same."""
    config = configure(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    jwks = ["--jwks", str(tmp_path / "jwks.json")]
    assert run(token_command.app, config, "init", *jwks).exit_code == 0
    token = answer(token_command.app, config, "mint", "--tenant", "acme", "--subject", "a")["token"]
    assert run(token_command.app, config, "rotate", *jwks, "--wait", "0s").exit_code == 0
    assert run(token_command.app, config, "init", *jwks).exit_code == 0
    assert verifies(tmp_path, token)
    (tmp_path / "jwks.json").write_text("{}")
    spoilt = run(token_command.app, config, "init", *jwks)
    assert spoilt.exit_code == 2
    assert "not a JWK set of ours" in spoilt.stderr


def test_a_list_shows_every_id_whole_and_names_as_they_are(config: Path, dsn: str) -> None:
    """Ids are what the other commands take, also from a narrow terminal; brackets in a name are no markup."""
    name = "[/red] :cat: [bold]of a name that is longer than any narrow column may be"
    made = answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", name, "--models", "chat,embed-*")
    listed = run(keys_command.app, config, "list")
    assert listed.exit_code == 0, listed.output
    assert made["id"] in listed.stdout
    assert name in listed.stdout


@pytest.mark.parametrize("time", ["infinity", "-infinity", "200000-01-01", "4000-01-01 BC"])
def test_a_time_that_python_does_not_have_hides_no_key(config: Path, dsn: str, time: str) -> None:
    made = answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", "ci")
    query(dsn, "UPDATE warden.api_keys SET expires_at = %s, last_used_at = %s, created_at = %s", time, time, time)
    early = time in {"-infinity", "4000-01-01 BC"}
    shown = answer(keys_command.app, config, "show", made["id"])
    assert shown["state"] == ("expired" if early else "active")
    assert shown["expires_at"].endswith("0001-01-03T00:00:00Z" if early else "9999-12-29T00:00:00Z")
    assert run(keys_command.app, config, "list").exit_code == 0
    assert answer(keys_command.app, config, "revoke", made["id"])["state"] == "revoked"


@pytest.mark.parametrize("when", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2027-13-01T00:00:00Z"])
def test_a_time_off_the_calendar_is_exit_2(config: Path, when: str) -> None:
    made = answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", "ci")
    result = run(keys_command.app, config, "expire", made["id"], "--when", when)
    assert result.exit_code == 2
    assert "is neither a time" in result.stderr


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [("24h", 2, "neither now nor a time"), ("2999-01-01T00:00:00Z", 1, "is yet to come"), ("soon", 2, "neither")],
)
def test_tokens_that_are_yet_to_be_issued_are_not_revoked(
    config: Path, dsn: str, before: str, code: int, said: str
) -> None:
    """It could never be taken back, and locks the tenant out until then."""
    result = run(token_command.app, config, "revoke", "--tenant", "acme", "--issued-before", before)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    assert query(dsn, "SELECT count(*) FROM warden.token_denials") == [(0,)]
