"""The kustomize bases: rendered by kubectl, valid by the schemas of Kubernetes, and as safe as they claim to be."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from caps.service.site import Settings
from services.mpc_server.settings import ServerSettings

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
ROLES = ("holder", "mpc-server", "coordinator")
EXAMPLES = {"example/s1": "mpc-server", "example/coordinator": "coordinator", "example/north-hospital": "holder"}
VERSIONS = ("1.29", "1.33")
PLAIN = sorted(path for path in (ROOT / "base").glob("*.yaml") if path.name != "kustomization.yaml")
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which renders, is not here")


@cache
def rendered(folder):
    """What kubectl would apply; no cluster and no network is needed."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(folder, kind):
    (found,) = (resource for resource in rendered(folder) if resource["kind"] == kind)
    return found


def pod(folder):
    return one(folder, "StatefulSet")["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_what_is_written_by_hand_is_valid(path, version):
    for resource in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_validation_can_fail():
    resource = yaml.safe_load((ROOT / "base" / "stateful-set.yaml").read_text())
    resource["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, VERSIONS[0], strict=True)


@needs_kubectl
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [*ROLES, *EXAMPLES])
def test_what_is_rendered_is_valid(folder, version):
    found = rendered(folder)
    kinds = sorted(resource["kind"] for resource in found)
    assert kinds == [
        "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet",
    ]  # fmt: skip
    for resource in found:
        kubernetes_validate.validate(resource, version, strict=True)


@needs_kubectl
@pytest.mark.parametrize("folder", [*ROLES, *EXAMPLES])
def test_a_pod_has_no_rights(folder):
    spec = pod(folder)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context
        assert not container["image"].endswith(":latest")


@needs_kubectl
@pytest.mark.parametrize("folder", [*ROLES, *EXAMPLES])
def test_keys_are_mounted_whole_and_read_only(folder):
    """A subPath would keep the old certificate for ever."""
    spec = pod(folder)
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "home")
    assert mount["readOnly"] is True
    assert "subPath" not in mount
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "home")
    assert volume["secret"]["defaultMode"] & 0o027 == 0
    assert all(resource["kind"] != "Secret" for resource in rendered(folder))


@needs_kubectl
@pytest.mark.parametrize("folder", [*ROLES, *EXAMPLES])
def test_state_has_one_owner_and_stays(folder):
    spec = one(folder, "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


@needs_kubectl
@pytest.mark.parametrize("folder", [*ROLES, *EXAMPLES])
def test_names_and_labels_fit_together(folder):
    stateful, service = one(folder, "StatefulSet"), one(folder, "Service")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == EXAMPLES.get(folder, folder)
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        one(folder, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(folder, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() and selector for selector in selectors)
    container = pod(folder)["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert container["envFrom"][0]["configMapRef"]["name"] == one(folder, "ConfigMap")["metadata"]["name"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
        assert container[probe]["httpGet"]["port"] in ports


@needs_kubectl
def test_a_server_that_waits_for_its_peers_can_be_reached_by_them():
    assert one("mpc-server", "Service")["spec"]["publishNotReadyAddresses"] is True
    opened = [rule for rule in one("mpc-server", "NetworkPolicy")["spec"]["ingress"] if "from" not in rule]
    assert {port["port"] for rule in opened for port in rule["ports"]} == {8443, 9443}


@needs_kubectl
def test_a_holder_is_not_reached_from_outside():
    policy = one("holder", "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] == [{"podSelector": {}}] for rule in policy["ingress"])
    assert one("example/north-hospital", "Service")["spec"]["type"] == "ClusterIP"


@needs_kubectl
@pytest.mark.parametrize("folder", EXAMPLES)
def test_services_understand_their_settings(folder):
    environment = one(folder, "ConfigMap")["data"]
    assert Settings.from_environment(environment).port == 8443
    if EXAMPLES[folder] == "mpc-server":
        settings = ServerSettings.from_environment(environment)
        assert settings.mesh_listen is not None
        assert settings.mesh_listen.port == 9443
    assert all(resource["metadata"]["namespace"] == one(folder, "Service")["metadata"]["namespace"]
               for resource in rendered(folder))  # fmt: skip
