"""The files for Kubernetes and Compose are valid, restricted, and agree with the image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from torana.config import Settings

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")

#: The oldest and the newest version of Kubernetes that the manifests are checked against.
VERSIONS = ("1.28", "1.37")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


class Manifests:
    """The files for Kubernetes in a folder, with the kind of the object that starts the pods."""

    def __init__(self, folder: str, kind: str) -> None:
        self.folder = ROOT / "deploy" / folder
        self.kustomization = read(self.folder / "kustomization.yaml")
        self.all: dict[str, dict[str, Any]] = {
            name: read(self.folder / name) for name in self.kustomization["resources"]
        }
        self.workload = self.of_kind(kind)
        self.pod: dict[str, Any] = self.workload["spec"]["template"]
        (self.container,) = self.pod["spec"]["containers"]

    def of_kind(self, kind: str) -> dict[str, Any]:
        """Return the gateway's object of a kind."""
        (found,) = (
            one for one in self.all.values() if one["kind"] == kind and one["metadata"]["name"] == "torana"
        )
        return found

    @property
    def settings(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "torana.toml").read_text())


SINGLE = Manifests("kubernetes", "StatefulSet")
REPLICAS = Manifests("kubernetes/replicas", "Deployment")
BOTH = pytest.mark.parametrize("of", [SINGLE, REPLICAS], ids=["single", "replicas"])

COMPOSE = read(ROOT / "compose.yaml")["services"]
COMPOSE_REPLICAS = read(ROOT / "compose.replicas.yaml")["services"]
GATEWAYS = [COMPOSE["torana"], *(one for name, one in COMPOSE_REPLICAS.items() if name.startswith("torana-"))]


@pytest.mark.parametrize("version", VERSIONS)
@BOTH
def test_manifests_match_the_schema_of_kubernetes(of: Manifests, version: str) -> None:
    for manifest in of.all.values():
        assert kubernetes_validate.validate(manifest, version, strict=True).startswith(version)


def test_schema_refuses_an_unknown_field() -> None:
    wrong = SINGLE.of_kind("Service") | {"spec": {"port": 80}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@BOTH
def test_pod_satisfies_the_restricted_standard(of: Manifests) -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    pod, container = of.pod["spec"]["securityContext"], of.container["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] != 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert {"hostNetwork", "hostPID", "hostIPC"} & of.pod["spec"].keys() == set()
    assert {next(kind for kind in volume if kind != "name") for volume in of.pod["spec"]["volumes"]} <= {
        "configMap",
        "emptyDir",
    }


@BOTH
def test_root_of_the_pod_is_read_only(of: Manifests) -> None:
    assert of.container["securityContext"]["readOnlyRootFilesystem"] is True


def test_root_of_the_containers_is_read_only() -> None:
    assert [one["read_only"] for one in [*GATEWAYS, COMPOSE_REPLICAS["haproxy"]]] == [True] * 5


@BOTH
def test_selectors_match_the_pod(of: Manifests) -> None:
    selectors = [
        of.workload["spec"]["selector"]["matchLabels"],
        of.of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of.of_kind("Service")["spec"]["selector"],
    ]
    assert selectors == [of.pod["metadata"]["labels"]] * 3


@BOTH
def test_manifests_agree_with_the_image(of: Manifests) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    context = of.pod["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user),
        int(group),
        int(group),
    )
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [one["containerPort"] for one in of.container["ports"]] == [int(port)]
    mounts = {mount["mountPath"] for mount in of.container["volumeMounts"]}
    assert mounts == {
        *re.findall(r"^(?:VOLUME|WORKDIR) (/data|/etc/torana)$", DOCKERFILE, re.MULTILINE),
        "/tmp",
    }


def test_published_port_is_the_gateways_default() -> None:
    port = Settings.model_fields["port"].default
    assert f"EXPOSE {port}" in DOCKERFILE.splitlines()
    assert COMPOSE["torana"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert COMPOSE_REPLICAS["haproxy"]["ports"] == [f"127.0.0.1:{port}:8080"]


def test_gateways_get_the_time_to_stop() -> None:
    drain = Settings.model_fields["drain"].default
    graces = [int(one["stop_grace_period"].removesuffix("s")) for one in GATEWAYS]
    graces += [of.pod["spec"]["terminationGracePeriodSeconds"] for of in (SINGLE, REPLICAS)]
    delays = [int(one.get("environment", {}).get("TORANA_DRAIN_DELAY", 0)) for one in GATEWAYS]
    delays += [of.settings.get("drain_delay", 0) for of in (SINGLE, REPLICAS)]

    assert [grace - delay > drain for grace, delay in zip(graces, delays, strict=True)] == [True] * len(graces)
    assert sorted(delays) == [0, 0, 5, 5, 5, 5]


@BOTH
def test_generated_objects_are_those_that_the_pod_names(of: Manifests) -> None:
    settings = [volume["configMap"]["name"] for volume in of.pod["spec"]["volumes"] if "configMap" in volume]
    secrets = [source["secretRef"]["name"] for source in of.container["envFrom"]]
    assert [one["name"] for one in of.kustomization["configMapGenerator"]] == settings
    assert [one["name"] for one in of.kustomization["secretGenerator"]] == secrets
    assert [one["name"] for one in of.kustomization["images"]] == [of.container["image"]]


def test_settings_files_are_valid() -> None:
    assert Settings(**SINGLE.settings).model == ("builtin",)
    replicas: dict[str, Any] = {**REPLICAS.settings, "database_url": "postgresql://torana@database/torana"}
    assert Settings(**replicas).replicas


def test_replicas_have_data_directories_of_their_own() -> None:
    volumes = [volume for one in GATEWAYS[1:] for volume in one["volumes"]]
    assert len(volumes) == len(set(volumes)) == 3
    assert [volume.rpartition(":")[2] for volume in volumes] == ["/data"] * 3


def test_replicas_with_compose_are_those_of_the_load_balancer() -> None:
    text = (ROOT / "deploy/proxies/haproxy.cfg").read_text()
    servers = re.findall(r"^ +server (\S+) (\S+):18789$", text, re.MULTILINE)
    assert [name for name, host in servers if name == host] == COMPOSE_REPLICAS["haproxy"]["depends_on"]


def test_replicas_use_a_valkey_without_a_disk() -> None:
    started, service = (REPLICAS.all[name] for name in ("valkey.yaml", "valkey-service.yaml"))
    (container,) = started["spec"]["template"]["spec"]["containers"]
    assert container["args"] == COMPOSE_REPLICAS["valkey"]["command"]
    assert container["args"][1:3] == ["--save", ""]
    addresses = [one["environment"]["TORANA_REDIS_URL"] for one in GATEWAYS[1:]]
    (variable,) = REPLICAS.container["env"]
    assert addresses == ["redis://valkey:6379/0"] * 3
    assert variable["value"] == f"redis://{service['metadata']['name']}:6379/0"
    assert service["spec"]["selector"] == started["spec"]["template"]["metadata"]["labels"]


def test_image_contains_no_secrets_and_no_tests() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sources = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for word in line.split()
    }
    assert "*" in lines
    assert copied == sources
