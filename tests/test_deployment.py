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
KUBERNETES = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))

#: The oldest and the newest version of Kubernetes that the manifests are checked against.
VERSIONS = ("1.28", "1.37")


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one for one in MANIFESTS.values() if one["kind"] == kind)
    return found


MANIFESTS: dict[str, dict[str, Any]] = {
    name: yaml.safe_load((KUBERNETES / name).read_text(encoding="utf-8")) for name in KUSTOMIZATION["resources"]
}
POD: dict[str, Any] = manifest("StatefulSet")["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_matches_the_schema_of_kubernetes(name: str, version: str) -> None:
    assert kubernetes_validate.validate(MANIFESTS[name], version, strict=True).startswith(version)


def test_schema_refuses_an_unknown_field() -> None:
    wrong = manifest("Service") | {"spec": {"port": 80}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_pod_satisfies_the_restricted_standard() -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    pod, container = POD["spec"]["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] != 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert {"hostNetwork", "hostPID", "hostIPC"} & POD["spec"].keys() == set()
    assert {next(kind for kind in volume if kind != "name") for volume in POD["spec"]["volumes"]} <= {
        "configMap",
        "emptyDir",
    }


def test_root_of_the_containers_is_read_only() -> None:
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert COMPOSE["services"]["torana"]["read_only"] is True


def test_selectors_match_the_pod() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [
        manifest("StatefulSet")["spec"]["selector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifest("Service")["spec"]["selector"],
    ]
    assert selectors == [labels] * 3


def test_manifests_agree_with_the_image() -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    context = POD["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user),
        int(group),
        int(group),
    )
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [one["containerPort"] for one in CONTAINER["ports"]] == [int(port)]
    assert COMPOSE["services"]["torana"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert int(port) == Settings.model_fields["port"].default
    mounts = {mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts == {
        *re.findall(r"^(?:VOLUME|WORKDIR) (/data|/etc/torana)$", DOCKERFILE, re.MULTILINE),
        "/tmp",
    }


def test_gateways_get_the_time_to_stop() -> None:
    drain = Settings.model_fields["drain"].default
    assert POD["spec"]["terminationGracePeriodSeconds"] > drain
    assert int(COMPOSE["services"]["torana"]["stop_grace_period"].removesuffix("s")) > drain


def test_generated_objects_are_those_that_the_pod_names() -> None:
    settings = [volume["configMap"]["name"] for volume in POD["spec"]["volumes"] if "configMap" in volume]
    secrets = [source["secretRef"]["name"] for source in CONTAINER["envFrom"]]
    assert [one["name"] for one in KUSTOMIZATION["configMapGenerator"]] == settings
    assert [one["name"] for one in KUSTOMIZATION["secretGenerator"]] == secrets
    assert [one["name"] for one in KUSTOMIZATION["images"]] == [CONTAINER["image"]]


def test_settings_file_of_the_manifests_is_valid() -> None:
    assert Settings(**tomllib.loads((KUBERNETES / "torana.toml").read_text())).model == ("builtin",)


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
