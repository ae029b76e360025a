"""The image, the Compose file and the Kubernetes manifest name the same user, port and folders, and the health check works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaptive_rec.cli.branch import train_arguments
from adaptive_rec.kernels.jit import cache_folder
from tests.packaging.conftest import FILES, ROOT, SOURCES
from tests.service.conftest import FakeRun, Sidecar

DEPLOY = ROOT / "deploy"
USER, PORT, HOME = 10001, 8470, "/data"
WRITABLE = {HOME, "/tmp"}


def image(name: str) -> str:
    """The value of the last such instruction of the Containerfile, which is that of its second stage."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text())
    return re.findall(rf"^{name} (.+)$", text, re.MULTILINE)[-1]


def health_check(port: int) -> list[str]:
    """The command of the image's health check, for a run on another port and under this Python."""
    command = json.loads(image("HEALTHCHECK").partition("CMD")[2])
    assert str(PORT) in command[-1]
    return [sys.executable, *command[1:-1], command[-1].replace(str(PORT), str(port))]


def composed(service: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())["services"][service])


def manifest(kind: str) -> dict[str, Any]:
    [found] = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()) if each["kind"] == kind]
    return dict(found)


def pod() -> dict[str, Any]:
    return dict(manifest("Job")["spec"]["template"]["spec"])


def commands() -> dict[str, list[str]]:
    [container] = pod()["containers"]
    return {"Compose": composed("train")["command"], "Kubernetes": container["args"]}


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {*SOURCES, *FILES} - {"tests"}


def test_the_image_has_a_user_without_rights_and_one_volume() -> None:
    assert image("USER") == f"{USER}:{USER}"
    assert image("VOLUME") == f'["{HOME}"]'
    assert image("EXPOSE") == str(PORT)
    assert f"HOME={HOME} " in image("ENV")  # caches, keys and states of libraries lie below it
    assert image("ENTRYPOINT") == '["adaptive-rec"]'


@pytest.mark.parametrize("place", ["Compose", "Kubernetes"])
def test_the_command_starts_a_run_and_goes_on_with_it(place: str) -> None:
    args = train_arguments(commands()[place])
    assert args.resume
    assert args.out.is_relative_to(HOME)
    assert str(args.token_file) == "/scrape/token"
    assert args.host == "0.0.0.0"
    assert args.port in (None, PORT)


def test_compose_runs_it_on_a_read_only_root() -> None:
    train, token = composed("train"), composed("token")
    assert train["read_only"]
    assert token["read_only"]
    assert train["cap_drop"] == ["ALL"]
    mounts = dict(each.split(":")[1:] if each.endswith(":ro") else (each.split(":")[1], "rw") for each in train["volumes"])
    assert {path for path, mode in mounts.items() if mode == "rw"} | set(train["tmpfs"]) == WRITABLE
    assert mounts["/scrape"] == "ro"
    assert train["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert composed("prometheus")["group_add"] == [str(USER)]


def test_compose_mounts_files_that_exist() -> None:
    for service in ("prometheus", "grafana"):
        for each in composed(service)["volumes"]:
            source = each.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / "compose" / source).is_file()
    assert (ROOT / composed("token")["build"]["dockerfile"]).is_file()


def test_composed_prometheus_is_that_of_deploy() -> None:
    theirs, ours = (
        yaml.safe_load(path.read_text()) for path in (DEPLOY / "prometheus.yml", DEPLOY / "compose" / "prometheus.yml")
    )
    [job], [wanted] = ours["scrape_configs"], theirs["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"train:{PORT}"]}]
    assert "--allow-host=train" in [word.split(" ")[0] for word in composed("train")["command"]]
    assert job["authorization"]["credentials_file"] == "/scrape/token"
    job["static_configs"], job["authorization"] = wanted["static_configs"], wanted["authorization"]
    assert ours == theirs


def test_the_pod_has_no_rights() -> None:
    user, [container] = pod()["securityContext"], pod()["containers"]
    assert user["runAsNonRoot"]
    assert {user["runAsUser"], user["runAsGroup"], user["fsGroup"]} == {USER}
    assert user["fsGroupChangePolicy"] == "OnRootMismatch"
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")} == WRITABLE
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod()["volumes"]}


def test_the_parts_of_the_manifest_fit_each_other() -> None:
    [container] = pod()["containers"]
    label = manifest("Job")["spec"]["template"]["metadata"]["labels"]
    service, monitor, policy = (manifest(kind)["spec"] for kind in ("Service", "ServiceMonitor", "NetworkPolicy"))
    assert service["selector"] == monitor["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == label
    assert manifest("Service")["metadata"]["labels"] == label
    [port] = container["ports"]
    assert port["containerPort"] == service["ports"][0]["port"] == PORT
    named = [service["ports"][0]["targetPort"], monitor["endpoints"][0]["port"], policy["ingress"][0]["ports"][0]["port"]]
    probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {*named, *(each["port"] for each in probes)} == {port["name"]}
    assert [each["path"] for each in probes] == ["/livez", "/livez", "/readyz"]
    secret = monitor["endpoints"][0]["authorization"]["credentials"]
    [mounted] = [each["secret"] for each in pod()["volumes"] if "secret" in each]
    assert (secret["name"], secret["key"]) == (mounted["secretName"], "token")
    assert mounted["defaultMode"] & 0o027 == 0  # what --token-file takes
    assert f"--allow-host={manifest('Service')['metadata']['name']}" in [word.split(" ")[0] for word in container["args"]]


def test_the_health_check_is_that_of_readyz(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    sidecar = Sidecar(run)
    try:
        codes = []
        for phase in ("starting", "training"):
            run.board(phase, None)
            assert sidecar.http.get("/readyz").status_code == (503 if phase == "starting" else 200)
            codes.append(subprocess.run(health_check(sidecar.port), capture_output=True, timeout=300).returncode)
        assert codes == [1, 0]
    finally:
        sidecar.end()
        run.writer.close()
    gone = subprocess.run(health_check(sidecar.port), capture_output=True, timeout=300)
    assert gone.returncode == 1


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'


@pytest.mark.slow
def test_a_run_writes_into_its_volume_and_the_folder_for_temporary_files_alone(tmp_path: Path) -> None:
    """The root file system is read-only for the run, but for two folders that stand for the volume and /tmp."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace of its own needs unshare, and the right to use it")
    if os.stat(tmp_path).st_dev != os.stat("/").st_dev:
        pytest.skip("the folder for tests lies on another file system than /, which stays writable")
    home, temporary = tmp_path / "data", tmp_path / "tmp"
    temporary.mkdir()
    shutil.copytree(cache_folder(), home / ".cache" / "adaptive-rec" / cache_folder().name)  # spares a minute of compiling
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    environment = {**kept, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(tmp_path), *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)

    assert run("touch", str(ROOT / "written")).returncode == 1
    train = [sys.executable, "-m", "adaptive_rec", "train", "tiny", "--resume", f"--out={home / 'runs' / 'one'}", "--port=0"]
    for steps in (10, 20):
        done = run(*train, f"--steps={steps}", f"--token-file={home / 'token'}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads((home / "runs" / "one" / "summary.json").read_text())["steps"] == steps
