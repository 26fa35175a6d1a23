"""The example manifest against what it deploys: ports and probes of DESIGN §6, configuration, bundle, bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from sidecar.cli.demo.triton import RESTRICTED
from sidecar.runtime import drain, shipper
from sidecar.runtime.settings import ListenSection, RestrictedSection, Settings, TritonSection, load
from sidecar.transports.upstream import RESTRICTED_PREFIX

MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "warden.yaml"
TRITON_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}  # DESIGN §6
_QUANTITY = re.compile(r"(\d+)(Mi|Gi)")  # of Kubernetes


def parsed() -> dict[tuple[str, str], Any]:
    documents = list(YAML(typ="safe", pure=True).load_all(MANIFEST.read_text()))
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(found) == len(documents)
    return found


ALL = parsed()
POD = ALL["StatefulSet", "triton"]["spec"]["template"]["spec"]
CONTAINERS = {each["name"]: each for each in POD["containers"]}
WARDEN, TRITON = CONTAINERS["warden"], CONTAINERS["triton"]
VOLUMES = {each["name"]: each for each in POD["volumes"]}


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def quantity(text: str) -> int:
    match = _QUANTITY.fullmatch(text)
    assert match is not None, text
    return int(match[1]) * {"Mi": 2**20, "Gi": 2**30}[match[2]]


def nap(container: Any) -> int:
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    return int(command[1])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """What the init container makes of the template."""
    (template,) = ALL["ConfigMap", "warden-config"]["data"].values()
    (configure,) = POD["initContainers"]
    assert 's/__POD_NAME__/$POD_NAME/" /template/warden.yaml > /etc/warden/warden.yaml' in configure["command"][2]
    assert max(line.count("__POD_NAME__") for line in template.splitlines()) == 1  # what that replaces in a line
    path = tmp_path / "warden.yaml"
    path.write_text(template.replace("__POD_NAME__", "triton-0"))
    return load(path)


def test_the_parts() -> None:
    assert set(ALL) == {
        ("StatefulSet", "triton"),
        ("ConfigMap", "warden-config"),
        ("ConfigMap", "warden-office"),
        ("CronJob", "warden-retain"),
        ("ConfigMap", "warden-bundle"),
        ("Service", "warden"),
        ("NetworkPolicy", "warden"),
        ("NetworkPolicy", "warden-retain"),
    }
    assert ALL["StatefulSet", "triton"]["spec"]["serviceName"] == "warden"


def test_everything_is_selected_by_one_label() -> None:
    labels = ALL["StatefulSet", "triton"]["spec"]["template"]["metadata"]["labels"]
    assert ALL["StatefulSet", "triton"]["spec"]["selector"]["matchLabels"] == labels
    assert ALL["Service", "warden"]["spec"]["selector"] == labels
    assert ALL["NetworkPolicy", "warden"]["spec"]["podSelector"]["matchLabels"] == labels


def test_the_sidecar_listens_where_it_always_does(settings: Settings) -> None:
    ports = {each["name"]: each["containerPort"] for each in WARDEN["ports"]}
    default = ListenSection()
    assert ports == {"grpc": port(default.grpc), "admin": port(default.admin)} == {"grpc": 8011, "admin": 8012}
    assert (port(settings.listen.grpc), port(settings.listen.admin)) == (ports["grpc"], ports["admin"])
    (served,) = ALL["Service", "warden"]["spec"]["ports"]
    assert (served["port"], served["targetPort"]) == (8011, "grpc")


def test_nobody_reaches_triton_but_the_sidecar(settings: Settings) -> None:
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in TRITON["args"] if arg.startswith("--"))
    for name, number in TRITON_PORTS.items():
        assert (flags[f"{name}-address"], flags[f"{name}-port"]) == ("127.0.0.1", str(number))
    secret = RestrictedSection(key="warden", env="TRITON_SECRET")
    assert settings.triton == TritonSection(restricted_secret=secret, model_repository=(Path("/models"),))
    for name, header in (("grpc-restricted-protocol", "warden"), ("http-restricted-api", RESTRICTED_PREFIX + "warden")):
        assert flags[name] == f"{','.join(RESTRICTED)}:{header}=$(TRITON_SECRET)"
    assert {env["name"] for env in TRITON["env"]} <= {env["name"] for env in WARDEN["env"]}
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in WARDEN["volumeMounts"]
    assert settings.triton.grpc == f"127.0.0.1:{flags['grpc-port']}"
    assert flags["model-control-mode"] == "none"
    assert "ports" not in TRITON


def test_only_clients_and_prometheus_come_in() -> None:
    policy = ALL["NetworkPolicy", "warden"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [[each["port"] for each in rule["ports"]] for rule in policy["ingress"]] == [[8011], [8012]]
    assert all(rule["from"] for rule in policy["ingress"])
    assert all(rule["to"] for rule in policy["egress"])


def test_the_probes_ask_the_admin_server() -> None:
    probes = {name: WARDEN[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/livez", "port": "admin"},
        "readinessProbe": {"path": "/readyz", "port": "admin"},
    }


def test_the_end_is_given_its_time(settings: Settings) -> None:
    drained = nap(WARDEN) + settings.bounds.grace + drain._CUT
    assert nap(TRITON) >= drained
    ended = drained + 2 * shipper._GRACE
    assert POD["terminationGracePeriodSeconds"] > max(ended, nap(TRITON))


def test_the_bounds_fit_what_they_are_given(settings: Settings) -> None:
    assert quantity(WARDEN["resources"]["limits"]["memory"]) >= settings.bounds.buffer_bytes + 512 * 2**20
    (claim,) = ALL["StatefulSet", "triton"]["spec"]["volumeClaimTemplates"]
    journal = settings.audit.journal
    assert claim["metadata"]["name"] == "journal"
    assert quantity(claim["spec"]["resources"]["requests"]["storage"]) > journal.max_bytes + journal.min_free


def test_every_path_of_the_configuration_is_mounted(settings: Settings) -> None:
    mounts = {each["mountPath"]: each for each in WARDEN["volumeMounts"]}
    assert settings.identity.keys is not None
    journal = settings.audit.journal
    assert str(journal.directory.parent) in mounts
    assert not mounts[str(journal.directory.parent)].get("readOnly")
    for file in (settings.policy.bundle / "x", journal.key_file, settings.identity.keys.pepper_file):
        assert mounts[str(file.parent)]["readOnly"] is True
    names = {mount["name"] for each in (*CONTAINERS.values(), *POD["initContainers"]) for mount in each["volumeMounts"]}
    assert names == set(VOLUMES) | {"journal"}


def test_keys_are_readable_for_the_pod_and_nobody_else() -> None:
    secret = VOLUMES["keys"]["secret"]
    assert secret["defaultMode"] == 0o440  # audit.secretfile takes no key that others can use
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]


def test_nothing_runs_with_more_than_it_needs() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    for container in (*POD["initContainers"], *CONTAINERS.values()):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    assert WARDEN["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_bundle_holds_and_has_the_sidecar_s_region(settings: Settings) -> None:
    data = ALL["ConfigMap", "warden-bundle"]["data"]
    items = VOLUMES["bundle"]["configMap"]["items"]
    assert {item["key"] for item in items} == set(data)
    bundle = compile_bundle({item["path"]: data[item["key"]].encode() for item in items})
    assert isinstance(bundle, Bundle), bundle
    assert bundle.regions[settings.sidecar.region] == settings.audit.database.jurisdiction
    failures = [result.failure for result in run_cases(bundle)]
    assert failures
    assert not any(failures)


def test_no_secret_is_in_it() -> None:
    assert not [kind for kind, _ in ALL if kind == "Secret"]
    database = YAML(typ="safe").load(ALL["ConfigMap", "warden-config"]["data"]["warden.yaml"])["audit"]["database"]
    assert "dsn" not in database  # each pod has a login of its own, in a file
    assert database["sidecar_dsn_file"].startswith("/etc/warden-database/")


def test_retention_runs_as_the_owner_with_the_sidecars_keys(tmp_path: Path, settings: Settings) -> None:
    pod = ALL["CronJob", "warden-retain"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    path = tmp_path / "office.yaml"
    path.write_text(ALL["ConfigMap", "warden-office"]["data"]["office.yaml"])
    office = load(path)
    assert container["args"][:2] == ["audit", "retain"]
    assert "@" in office.audit.database.dsn
    assert ":" not in office.audit.database.dsn.split("//")[1].split("@")[0]  # the password is the secret's
    assert office.audit.database.jurisdiction == settings.audit.database.jurisdiction
    assert office.audit.keys_directory == settings.audit.keys_directory
    assert office.audit.journal.key_file == settings.audit.journal.key_file
    assert office.audit.journal.keep == settings.audit.journal.keep
    assert office.identity.keys is not None, "no API key can be issued: a sidecar's own login may not"
    assert office.identity.keys == settings.identity.keys, "a key issued here is unknown there"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(office.audit.keys_directory), str(office.audit.journal.key_file.parent)} <= mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]


def test_retention_reaches_the_database_alone_and_a_run_that_hangs_ends_before_the_next() -> None:
    job = ALL["CronJob", "warden-retain"]["spec"]
    policy = ALL["NetworkPolicy", "warden-retain"]["spec"]
    labels = job["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert labels != ALL["NetworkPolicy", "warden"]["spec"]["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy  # nothing comes in
    sidecars = ALL["NetworkPolicy", "warden"]["spec"]["egress"]
    assert policy["egress"] == [rule for rule in sidecars if rule["ports"][0]["port"] in {53, 5432}]
    assert job["concurrencyPolicy"] == "Forbid"
    assert job["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 24 * 3600
