"""What a stranger asks a port for, as another user of the machine or of the network would: to run a program, to kill what runs, for blocks and pages.

    python port_client.py HOST:PORT ...        prints a line of JSON: {HOST:PORT: {"is": ..., "ran": ..., "blocks": {...}, "pages": {request: text}}}

The standard library, and no secret. Started by root it becomes `nobody`; `block_client.py` has to lie beside it.
"""

import base64
import http.client
import json
import re
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

from block_client import Connection, become_nobody, served

PAGES = 40
SECONDS = 5
PROGRAM = {
    "action": "CreateSubmissionRequest",
    "appResource": "",
    "appArgs": ["/etc/hostname", ""],
    "clientSparkVersion": "4.2.0",
}
PROGRAM |= {"environmentVariables": {}, "mainClass": "org.apache.spark.deploy.PythonRunner"}
PROGRAM |= {
    "sparkProperties": {
        "spark.app.name": "stranger",
        "spark.master": "spark://127.0.0.1:1",
        "spark.submit.deployMode": "cluster",
    }
}


def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: str = "",
    kind: str = "application/x-www-form-urlencoded",
) -> str:
    """The answer with its status, or "" from whoever does not speak HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request(method, path, body or None, {"Content-Type": kind} if body else {})
        answer = connection.getresponse()
        return f"{answer.status}\n{answer.getheader('Location') or ''}\n{answer.read().decode(errors='replace')}"
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def pages_of(host: str, port: int) -> dict[str, str]:
    """All that can be looked at: every page that a page links to, and those that are known."""
    found: dict[str, str] = {}
    wanted = [
        "/", "/json/", "/environment/", "/logPage/?self&logType=out", "/metrics/json/", "/metrics/prometheus/", "/api/v1/applications",
    ]  # fmt: skip
    while wanted and len(found) < PAGES:
        path = wanted.pop(0)
        if path in found or "/static/" in path:
            continue
        found[path] = text = ask(host, port, "GET", path)
        if not text:
            break
        links = [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]+)"', text)]
        here = f"http://{host}:{port}"
        wanted += [
            link.removeprefix(here).rpartition("#")[0] or link.removeprefix(here)
            for link in links
            if link.startswith(("/", here))
        ]
    return found


def kafka(host: str, port: int, what: int, body: bytes) -> str:
    """A broker's answer to one request without a password; "" if it closes, or is none."""
    request = struct.pack(">hhih", what, 4, 17, -1) + body
    try:
        with socket.create_connection((host, port), SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(1 << 16)
    except OSError:
        return ""
    return answer[8:].decode(errors="replace") if answer[4:8] == struct.pack(">i", 17) else ""


def asked(place: str) -> dict[str, object]:
    """Everything that one port is asked for, and what it answers."""
    host, _, given = place.rpartition(":")
    port = int(given)
    pages = pages_of(host, port)
    if any(pages.values()):
        for application in set(re.findall(r"app-\d{14}-\d{4}", "".join(pages.values()))):
            pages["POST /app/kill/"] = ask(
                host, port, "POST", "/app/kill/", f"id={application}&terminate=true"
            )
        pages["POST /driver/kill/"] = ask(
            host, port, "POST", "/driver/kill/", "id=driver-20260101000000-0000&terminate=true"
        )
        pages["POST /workers/kill/"] = ask(
            host, port, "POST", f"/workers/kill/?host={host}", "host=" + host
        )
        created = ask(
            host, port, "POST", "/v1/submissions/create", json.dumps(PROGRAM), "application/json"
        )
        pages["POST /v1/submissions/create"] = created
        pages["/api/kernels"] = kernels = ask(
            host, port, "GET", "/api/kernels"
        )  # whoever may list those of Jupyter may start one
        return {
            "is": "HTTP",
            "ran": '"success" : true' in created or bool(re.match(r"200\n.*\n\[", kernels)),
            "blocks": {},
            "pages": pages,
        }
    topic = struct.pack(">ih8sihiiib", 1, 8, b"stranger", 1, 1, 0, 0, 9_000, False)
    pages = {
        "Kafka's topics": kafka(host, port, 3, struct.pack(">ib", -1, False)),
        "a topic for Kafka": kafka(host, port, 19, topic),
    }
    if any(pages.values()):
        return {
            "is": "Kafka",
            "ran": bool(pages["a topic for Kafka"]),
            "blocks": {},
            "pages": pages,
        }
    blocks = {name: base64.b64encode(block).decode() for name, block in served(port, host).items()}
    return {"is": said(host, port), "ran": False, "blocks": blocks, "pages": {}}


def said(host: str, port: int) -> str:
    """What a port is for whoever asks it for a block."""
    try:
        Connection(port, host=host).fetch("broadcast_0_piece0")
        return "it has no such block"
    except TimeoutError:
        return "it says nothing"
    except OSError as problem:
        return str(problem)


if __name__ == "__main__":
    become_nobody()
    with ThreadPoolExecutor(len(sys.argv)) as threads:
        print(json.dumps(dict(zip(sys.argv[1:], threads.map(asked, sys.argv[1:]), strict=True))))
