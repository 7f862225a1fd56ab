"""A stand-in for the API server of Kubernetes: HTTPS, bearer tokens, the scale of workloads, annotations of pods.

What it says has the form of the real one's answers (apps/v1, autoscaling/v1 Scale, meta/v1 Status), and it refuses what
the real one would: a version that is not the newest, a body of another kind, a patch of another content type.
"""

import base64
import datetime as dt
import ipaddress
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TOKEN = "of-the-autoscaler"
USER = "system:serviceaccount:headrace:autoscaler"
_SCALE = re.compile(
    r"/apis/apps/v1/namespaces/(?P<ns>[\w-]+)/(?P<kind>deployments|statefulsets)/(?P<name>[\w.-]+)/scale"
)
_POD = re.compile(r"/api/v1/namespaces/(?P<ns>[\w-]+)/pods/(?P<name>[\w.-]+)")


@dataclass
class Cluster:
    """What the server knows, and what a test wants of it."""

    replicas: dict[tuple[str, str, str], int]
    """Wanted, by namespace, kind and name."""
    pods: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """Annotations, by namespace and name."""
    forbidden: set[str] = field(default_factory=set)
    """Verbs, as in a Role: get, update, patch."""
    is_slow: bool = False
    """Answers 504, as an API server whose store does not answer it."""
    is_silent: bool = False
    """Takes requests and never answers."""
    before_update: Callable[[], None] = lambda: None
    after_update: Callable[[], None] = lambda: None
    """It is written, and nobody has been told."""
    version: int = 100
    requests: list[str] = field(default_factory=list)
    answered: SimpleQueue[int] = field(default_factory=SimpleQueue)
    """Status codes, in their order."""
    url: str = ""
    kubeconfig: Path = Path()
    closing: threading.Event = field(default_factory=threading.Event)

    def scale_by_hand(self, key: tuple[str, str, str], replicas: int) -> None:
        """Somebody else writes the object."""
        self.replicas[key] = replicas
        self.version += 1


class _RefusedError(Exception):
    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": code,
        }


@contextmanager
def kubernetes_api(folder: Path, replicas: dict[tuple[str, str, str], int]) -> Iterator[Cluster]:
    """Runs the server; `Cluster.kubeconfig` is the file that leads to it."""
    cluster = Cluster(replicas)
    certificate, key = _certificate(folder)

    class Handler(_Handler):
        pass

    Handler.cluster = cluster
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    cluster.url = f"https://127.0.0.1:{server.server_address[1]}"
    cluster.kubeconfig = _kubeconfig(folder, cluster.url, certificate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="kubernetes")
    thread.start()
    try:
        yield cluster
    finally:
        cluster.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.cluster.requests.append(f"{self.command} {self.path}")
        if self.cluster.is_silent:
            self.cluster.closing.wait()
            self.close_connection = True
            return
        try:
            code, answer = 200, self._answer(body)
        except _RefusedError as refused:
            code, answer = refused.code, refused.status
        self.cluster.answered.put(code)
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_PATCH = _serve  # noqa: N815

    def _answer(self, body: bytes) -> dict[str, Any]:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _RefusedError(401, "Unauthorized", "Unauthorized")
        if self.cluster.is_slow:
            raise _RefusedError(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
        if match := _SCALE.fullmatch(self.path):
            return self._scale(match["ns"], match["kind"], match["name"], body)
        if match := _POD.fullmatch(self.path):
            return self._pod(match["ns"], match["name"], body)
        raise _RefusedError(404, "NotFound", "the server could not find the requested resource")

    def _scale(self, namespace: str, kind: str, name: str, body: bytes) -> dict[str, Any]:
        cluster, key = self.cluster, (namespace, kind, name)
        details = {"name": name, "group": "apps", "kind": kind}
        verb = {"GET": "get", "PUT": "update", "PATCH": "patch"}[self.command]
        self._allow(verb, f'{kind}.apps "{name}"', f'"{kind}/scale" in API group "apps"', namespace, details)
        if key not in cluster.replicas:
            raise _RefusedError(404, "NotFound", f'{kind}.apps "{name}" not found', details)
        if verb == "update":
            cluster.before_update()
            scale = json.loads(body)
            if (scale.get("kind"), scale.get("apiVersion")) != ("Scale", "autoscaling/v1"):
                raise _RefusedError(400, "BadRequest", f"the object provided is unrecognized: {scale}")
            if scale["metadata"].get("name") != name or scale["metadata"].get("namespace") != namespace:
                raise _RefusedError(400, "BadRequest", "the name of the object does not match the name on the URL")
            if scale["metadata"].get("resourceVersion") not in {None, str(cluster.version)}:
                message = (
                    f'Operation cannot be fulfilled on {kind}.apps "{name}": the object has been modified; please'
                    " apply your changes to the latest version and try again"
                )
                raise _RefusedError(409, "Conflict", message, details)
            wanted = scale.get("spec", {}).get("replicas", 0)
            if not isinstance(wanted, int) or wanted < 0:
                raise _RefusedError(422, "Invalid", "spec.replicas: must be greater than or equal to 0", details)
            cluster.scale_by_hand(key, wanted)
            cluster.after_update()
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": "8f7b1f0e-6f0a-4a5c-9d8e-3b9f4d2c1a00",
                "resourceVersion": str(cluster.version),
                "creationTimestamp": "2026-11-30T09:00:00Z",
            },
            "spec": {"replicas": cluster.replicas[key]} if cluster.replicas[key] else {},
            "status": {"replicas": cluster.replicas[key], "selector": f"app={name}"},
        }

    def _pod(self, namespace: str, name: str, body: bytes) -> dict[str, Any]:
        details = {"name": name, "kind": "pods"}
        verb = {"GET": "get", "PUT": "update", "PATCH": "patch"}[self.command]
        self._allow(verb, f'pods "{name}"', '"pods" in API group ""', namespace, details)
        if (namespace, name) not in self.cluster.pods:
            raise _RefusedError(404, "NotFound", f'pods "{name}" not found', details)
        if verb == "patch":
            kinds = {"application/merge-patch+json", "application/strategic-merge-patch+json"}
            if self.headers.get("Content-Type") not in kinds:
                raise _RefusedError(415, "UnsupportedMediaType", f"not supported: {self.headers.get('Content-Type')}")
            self.cluster.pods[namespace, name].update(json.loads(body)["metadata"]["annotations"])
        annotations = self.cluster.pods[namespace, name]
        metadata = {"name": name, "namespace": namespace, "annotations": annotations}
        return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}

    def _allow(self, verb: str, what: str, resource: str, namespace: str, details: dict[str, Any]) -> None:
        if verb in self.cluster.forbidden:
            message = (
                f'{what} is forbidden: User "{USER}" cannot {verb} resource {resource} in the namespace "{namespace}"'
            )
            raise _RefusedError(403, "Forbidden", message, details)


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes of a test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "api.crt", folder / "api.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def _kubeconfig(folder: Path, url: str, certificate: Path) -> Path:
    authority = base64.b64encode(certificate.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "headrace"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content))  # JSON is YAML
    return file
