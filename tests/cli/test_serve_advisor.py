"""``gpucost serve`` with its advisor and admission webhook, as one runs it: TLS, and files that change."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpucost.access.keys import format_key, hash_secret
from tests.cli.state_worlds import GPU, cluster
from tests.kube.pki import Pki, make_pki, write_kubeconfig
from tests.support.cluster.server import ClusterServer
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
TOKEN, NEXT_TOKEN = "first-token-of-the-webhook", "second-token-of-the-webhook"
SECRET = "s" * 43
KEY = format_key("fin", SECRET)
GPUCOST = (sys.executable, "-c", "from gpucost.cli import main; main()")
JOBS = 64
"""More pods of eight GPUs than any queue has."""


@dataclass
class Served:
    """A running ``gpucost serve``, and the files it was given."""

    process: subprocess.Popen[str]
    folder: Path
    api: str
    port: int
    said: list[str]

    def review(self, token: str, document: dict[str, Any]) -> tuple[int, Any, float]:
        """Status, answer and seconds, over a new connection."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        connection.connect()
        begun = time.monotonic()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v1/admission/{token}?timeout=2s", review(document), headers)
        answered = connection.getresponse()
        content, took = answered.read(), time.monotonic() - begun
        connection.close()
        return answered.status, json.loads(content) if content else None, took

    def certificate(self) -> str:
        """What a new connection gets, in PEM."""
        return ssl.get_server_certificate(("127.0.0.1", self.port)).strip()

    def children(self) -> list[int]:
        """Processes that it started."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        threads = found.parents[1].glob("*/children")
        return [int(number) for each in threads for number in each.read_text().split()]


@pytest.fixture(scope="module")
def pkis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pki, Pki]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    return make_pki(tmp_path_factory.mktemp("old")), make_pki(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, pkis: tuple[Pki, Pki]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    put(pkis[0], folder)
    (folder / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    port = free_port()
    with ClusterServer() as server:
        for found in cluster():
            server.put(found)
        write_kubeconfig(folder / "kubeconfig", {"server": server.url})
        (folder / "settings.yaml").write_text(settings(folder, port), encoding="utf-8")
        process = subprocess.Popen(
            [*GPUCOST, "--config", str(folder / "settings.yaml"), "serve"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd=ROOT,
        )
        said: list[str] = []
        found = Served(process, folder, "", port, said)
        listening = threading.Event()
        assert process.stdout is not None
        output = process.stdout

        def read() -> None:
            for line in output:
                said.append(line)
                if "http://127.0.0.1:" in line and "answering on" in line:
                    found.api = line[line.index("http://") :].split()[0]
                    listening.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert listening.wait(60), said
            yield found
        finally:
            process.kill()
            process.wait()
            reader.join(10)
            output.close()


def settings(folder: Path, port: int) -> str:
    """Of a service that has no Prometheus, and a cluster to watch."""
    return f"""
ledger: {{url: "sqlite:///{folder / "ledger.db"}"}}
prometheus: {{url: "http://127.0.0.1:{free_port()}", cluster: c}}
detectors: {{state: kubeconfig, kubeconfig: {folder / "kubeconfig"}}}
api:
  port: 0
  keys:
    - {{id: fin, sha256: {hash_secret(SECRET)}, role: finance}}
webhook:
  enabled: true
  port: {port}
  token_file: {folder / "token"}
  tls_cert_file: {folder / "tls.crt"}
  tls_key_file: {folder / "tls.key"}
"""


def put(pki: Pki, folder: Path) -> None:
    """Replace the files at once, as kubelet does with those of a Secret."""
    pairs = ((pki.server.with_suffix(".crt"), "tls.crt"), (pki.server, "tls.key"), (pki.ca, "ca.crt"))
    for source, name in pairs:
        replace_file(folder / name, source.read_text(encoding="utf-8"))


def replace_file(file: Path, text: str) -> None:
    fresh = file.with_suffix(".fresh")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def job(pods: int, gpus: int = 8) -> dict[str, Any]:
    resources = {"limits": {GPU: gpus}} if gpus else {"requests": {"cpu": 1}}
    container = {"name": "main", "image": "train", "resources": resources}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "nlp",
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def review(document: dict[str, Any]) -> bytes:
    request = {"uid": "the-uid", "namespace": "nlp", "operation": "CREATE", "dryRun": True}
    request |= {"object": document}
    sent = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(sent).encode()


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError(f"it did not happen in {seconds} s")


def has_advice(served: Served, token: str) -> bool:
    """Whether it says what it says once all of the cluster is read."""
    try:
        status, found, _ = served.review(token, job(JOBS))
    except OSError:  # it does not listen yet, or changes its certificate at this moment
        return False
    warnings = found["response"].get("warnings", [""]) if status == 200 else [""]
    return str(warnings[0]).startswith("gpucost: will not run as it is: ")


def has_certificate(served: Served, pem: str) -> bool:
    try:
        return served.certificate() == pem
    except OSError:
        return False


def advised(served: Served) -> Any:
    """The response to a review that got advice: on a busy machine one may be too late for it."""
    for _ in range(100):
        status, found, _ = served.review(TOKEN, job(JOBS))
        assert status == 200
        if "warnings" in found["response"]:
            return found["response"]
        time.sleep(0.1)
    raise AssertionError("no review of a hundred got advice")


def ready(served: Served) -> None:
    """The listener listens, and the state of the cluster is known."""
    eventually(lambda: has_advice(served, TOKEN))


@pytest.mark.fault(57)
def test_a_review_gets_advice_over_tls(served: Served) -> None:
    ready(served)
    response = advised(served)
    assert (response["uid"], response["allowed"]) == ("the-uid", True)
    assert response["warnings"][0].startswith("gpucost: will not run as it is: ")
    assert all(len(each) <= 120 for each in response["warnings"])
    assert "warnings" not in served.review(TOKEN, job(JOBS, gpus=0))[1]["response"]
    assert served.review(NEXT_TOKEN, job(JOBS))[0] == 404


def test_the_api_answers_the_same(served: Served) -> None:
    ready(served)
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=served.api, headers=headers, timeout=30) as client:
        found = client.post("/v1/advisor/advice", json={"manifest": job(JOBS), "suggestions": False}).json()
        assert (found["schema"], found["decision"]) == ("gpucost/Advice/v1", "never")
        held = client.get("/v1/explain/PyTorchJob/nlp/train-0").json()
        assert client.get("/v1/explain/Job/nlp/nobody").status_code == 404
        counted = 'gpucost_webhook_reviews_total{result="advised"}'
        eventually(lambda: counted in client.get("/metrics").text)  # the listener reports now and then
    assert held["schema"] == "gpucost/Explanation/v1"
    with httpx2.Client(base_url=served.api, timeout=30) as client:
        assert client.post("/v1/advisor/advice", json={"manifest": job(1)}).status_code == 401


def test_a_certificate_and_a_token_are_replaced_while_it_runs(served: Served, pkis: tuple[Pki, Pki]) -> None:
    ready(served)
    old, new = (each.server.with_suffix(".crt").read_text(encoding="utf-8").strip() for each in pkis)
    assert served.certificate() == old
    put(pkis[1], served.folder)
    replace_file(served.folder / "token", NEXT_TOKEN)
    eventually(lambda: has_certificate(served, new))
    eventually(lambda: has_advice(served, NEXT_TOKEN))
    assert served.review(TOKEN, job(JOBS))[0] == 404, "who knew the old one knows nothing now"
    replace_file(served.folder / "token", "too short")
    eventually(lambda: any("the token before stays" in line for line in served.said))
    eventually(lambda: has_advice(served, NEXT_TOKEN))


@pytest.mark.slow
def test_it_ends_with_all_its_processes(served: Served) -> None:
    """Last: after it no process answers."""
    eventually(lambda: len(served.children()) == 1)
    (listener,) = served.children()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(40) == 0, served.said
    with pytest.raises(ProcessLookupError):
        os.kill(listener, 0)
    with pytest.raises(ConnectionRefusedError):
        served.review(NEXT_TOKEN, job(1))
    assert not [line for line in served.said if TOKEN in line or NEXT_TOKEN in line or SECRET in line]
