"""What deploy/ says of the server is true: names of metrics, paths, flags, files, users, ports."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from infinipot.cli import app
from infinipot.server.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMANDS: Any = typer.main.get_command(app)
SERVE = {flag for option in COMMANDS.commands["serve"].params for flag in option.opts}
OPTIONS = {option.name for option in COMMANDS.commands["serve"].params}


# ---------------------------------------------------------------- the dashboard


def strings(node: Any, key: str) -> list[str]:
    """All texts under a key, anywhere in a JSON document."""
    if isinstance(node, list):
        return [text for item in node for text in strings(item, key)]
    if not isinstance(node, dict):
        return []
    own = [node[key]] if isinstance(node.get(key), str) else []
    return own + [text for item in node.values() for text in strings(item, key)]


def names_in(query: str) -> set[str]:
    """The metrics that a PromQL query names: words outside of selectors, groupings and functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on)\s*\([^)]*\)", " ", query)
    bare = re.sub(r"[a-z_]+\s*\(", "(", bare)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare))


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Labels by the name of each series that a server can show."""
    found: dict[str, set[str]] = {}
    for family in Metrics("tiny", "infinipot", 256).registry.collect():
        names = [family.name]
        if family.type == "counter":
            names = [f"{family.name}_total"]
        if family.type == "info":
            names = [f"{family.name}_info"]
        if family.type == "histogram":
            names = [f"{family.name}{end}" for end in ("_bucket", "_sum", "_count")]
        for name in names:
            found[name] = {label for sample in family.samples for label in sample.labels}
    return found


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana.json").read_text())


def test_every_query_names_metrics_that_exist(series: dict[str, set[str]]) -> None:
    queries = strings(dashboard(), "expr")
    assert len(queries) > 20
    for query in queries:
        names = names_in(query)
        assert names and names <= series.keys(), query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    for query in strings(dashboard()["templating"], "query"):
        if query.startswith("label_values"):
            assert re.match(r"label_values\((\w+)", query)[1] in series  # type: ignore[index]
    assert names_in('sum by (a) (rate(x_total{b="c"}[5m])) / on (d) y') == {"x_total", "y"}


def test_labels_of_queries_exist() -> None:
    metrics = Metrics("tiny", "infinipot", 256)
    own = {
        *metrics.requests._labelnames, *metrics.failures._labelnames, *metrics.duration_s._labelnames,
        "le", "job", "instance",
    }  # fmt: skip
    for query in strings(dashboard(), "expr"):
        grouped = re.findall(r"\bby \(([^)]*)\)", query)
        matched = re.findall(r"[{,]\s*(\w+)\s*=", query)
        used = {label.strip() for group in grouped for label in group.split(",")} | {*matched}
        assert used <= own, query
    shown = " ".join(strings(dashboard(), "legendFormat"))
    assert set(re.findall(r"\{\{(\w+)\}\}", shown)) <= own


def test_panels_are_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        assert [target["datasource"]["uid"] for target in panel["targets"]].count(
            "${datasource}"
        ) == len(panel["targets"])


# ---------------------------------------------------------------- the image


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word
    ]


def last_stage() -> dict[str, list[str]]:
    stage: dict[str, list[str]] = {}
    for word, rest in instructions():
        stage = {} if word == "FROM" else stage
        stage.setdefault(word, []).append(rest)
    return stage


def ignored(path: str) -> bool:
    """Whether .dockerignore leaves a path out: the last pattern that fits decides."""
    out = False
    parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [Path(name).name for name in parents] if "**/" in line else parents
        if (
            line
            and not line.startswith("#")
            and any(fnmatch.fnmatch(name, pattern) for name in names)
        ):
            out = not line.startswith("!")
    return out


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    copied = [
        name for word, rest in instructions() if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    ]  # fmt: skip
    assert {"infinipot", "pyproject.toml", "README.md", "LICENSE"} == {*copied}
    for name in copied:
        assert (ROOT / name).exists() and not ignored(name)
    assert not ignored("infinipot/server/web/index.html")
    for name in (".git/config", ".venv/bin/python", "tests/conftest.py", "benchmarks/results/a.jsonl", "a.pot.safetensors",
                 "infinipot/__pycache__/a.pyc", ".env", "results.jsonl"):  # fmt: skip
        assert ignored(name), name


def test_the_image_runs_without_root() -> None:
    stage = last_stage()
    assert stage["USER"] == ["10001:10001"]
    assert json.loads(stage["VOLUME"][0]) == ["/pots", "/models"]
    assert "HF_HOME=/models" in stage["ENV"][0]
    command = json.loads(stage["ENTRYPOINT"][0])
    assert command[:2] == ["infinipot", "serve"]
    assert {word for word in command if word.startswith("--")} <= SERVE
    assert command[command.index("--pot-dir") + 1] in json.loads(stage["VOLUME"][0])
    port = command[command.index("--port") + 1]
    assert stage["EXPOSE"] == [port]
    check = stage["HEALTHCHECK"][0]
    code = json.loads(check.split("CMD", 1)[1])[2]
    compile(code, "HEALTHCHECK", "exec")
    assert port in code and "'/health'" in code
    assert not any("apt-get" in run or "pip" in run for run in stage["RUN"])


# ---------------------------------------------------------------- compose, Kubernetes, systemd


def test_compose_uses_the_image() -> None:
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    build = service["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert {flag for flag in service["command"] if flag.startswith("--")} <= SERVE
    assert {mount.split(":")[1] for mount in service["volumes"]} == {"/pots", "/models"}
    assert service["environment"]["INFINIPOT_API_KEY"].startswith("${INFINIPOT_API_KEY:?")
    (cuda,) = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())["services"].values()
    names = {rest.split("=")[0] for word, rest in instructions() if word == "ARG"}
    assert {*cuda["build"]["args"]} <= names


def test_the_manifest_fits_together() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    kinds = {document["kind"]: document for document in documents}
    pod = kinds["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probes = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/ready", "readiness": "/ready", "liveness": "/health",
    }  # fmt: skip
    assert all(probe["port"] in ports for probe in probes.values())
    assert str(ports["http"]) == last_stage()["EXPOSE"][0]
    service = kinds["Service"]["spec"]
    assert service["ports"][0]["targetPort"] in ports
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    claims = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim"}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {
        v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "emptyDir" not in v
    } == claims
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"/pots", "/models"} <= mounts.keys() and {*mounts.values()} == volumes.keys()
    assert f"{pod['spec']['securityContext']['runAsUser']}:" in last_stage()["USER"][0]
    (key,) = container["env"]
    assert key["name"] == "INFINIPOT_API_KEY" and "secretKeyRef" in key["valueFrom"]
    assert {flag for flag in container["args"] if flag.startswith("--")} <= SERVE
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert kinds["Deployment"]["spec"]["replicas"] == 1  # a folder of pots belongs to one server


def test_what_the_unit_and_the_page_name_exists() -> None:
    unit = (DEPLOY / "infinipot.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    flags = {word for word in shlex.split(start) if word.startswith("--")}
    assert flags and flags <= SERVE
    page = (ROOT / "docs" / "deploy.md").read_text()
    named = {name.lower() for name in re.findall(r"INFINIPOT_([A-Z_]+[A-Z])", page)}
    assert {"root_path", "log_format", "api_key"} <= named <= OPTIONS
    for path in DEPLOY.iterdir():
        assert f"../deploy/{path.name}" in page, f"docs/deploy.md does not name {path.name}"
