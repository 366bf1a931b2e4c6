"""docker-compose.yml on a real engine, as a user starts it: live rows, kills, restarts, verification, and what strangers get of every port.
`make compose` shows what it finds. Where no Docker Engine answers all of it is skipped, with one line."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.deployment.commands import CHECKOUT
from tests.deployment.processes import free_ports, wait_until
from tests.deployment.spark_cluster import COMPOSE

PROJECT = "dpsql-check"
"""Of its own: whoever has the file's own project at work here keeps it."""
CLIENTS = CHECKOUT / "tests" / "deployment"
LISTENING = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"
KILL = "kill -9 $(grep -l '^java$' /proc/[0-9]*/comm | cut -d/ -f3)"
KILL_JOB = "kill -9 $(grep -l '^dpsql$' /proc/[0-9]*/comm | cut -d/ -f3)"
STATE = "{{.State.Status}} {{.HostConfig.RestartPolicy.Name}} {{.HostConfig.LogConfig.Type}}"
LOOK, SECOND = (shlex.split(line)[2:] for line in COMPOSE.replace("\\\n", "").splitlines())
"""The page's commands, after `docker compose`: a look at the live run, and a run beside it."""
NEWEST = "import dpsql; print(dpsql.latest('/lake', 'edits').trigger_time.max())"
NOTEBOOK = "import nbformat, nbclient; b = nbformat.read('conf/live/histogram.ipynb', 4); nbclient.NotebookClient(b).execute(); print(b.cells[0].outputs)"
SUBMIT = "spark-submit --deploy-mode cluster --master spark://master:7077 --name stranger --class Any local:///none.jar"
SUBMISSIONS = (
    [
        "python",
        "-c",
        "from pyspark import SparkContext; SparkContext('spark://master:7077', 'stranger')",
    ],
    SUBMIT.split(),
)
READERS = "page", "notebook"


def missing() -> str:
    """What this machine lacks for it, in one line; empty if nothing."""
    if shutil.which("docker") is None:
        return "docker is missing: install Docker Engine and its plugin compose"
    for words, lacks in (
        (["info"], "no Docker Engine answers: start dockerd"),
        (["compose", "version"], "docker has no plugin compose: install it"),
    ):
        if subprocess.run(["docker", *words], capture_output=True, check=False).returncode:
            return lacks
    return ""


class Stack:
    """The services of the file at work, under a name and with ports of their own."""

    def __init__(self) -> None:
        self.page, self.notebook = free_ports(2)

    def compose(self, *words: str, check: bool = True, timeout: float = 300) -> str:
        command = ["docker", "compose", "--project-directory", str(CHECKOUT), "-p", PROJECT, *words]
        ports = {"DPSQL_PAGE": str(self.page), "DPSQL_NOTEBOOK": str(self.notebook)}
        done = subprocess.run(
            ["env", *(f"{name}={value}" for name, value in ports.items()), *command],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout + ("" if check else done.stderr)

    def inside(self, service: str, *words: str, check: bool = True) -> str:
        return self.compose("exec", "-T", service, *words, check=check)

    def newest(self) -> str:
        """The time of the newest trigger that a reader sees."""
        return self.inside("notebook", "python", "-c", NEWEST, check=False).strip()

    def goes_on(self, after: str) -> None:
        wait_until(lambda: self.newest() > after, "a newer trigger", 300)

    def containers(self) -> dict[str, str]:
        names = self.compose("ps", "--format", "{{.Name}}").split()
        return {name.removeprefix(f"{PROJECT}-"): name for name in names}


def said(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def opened(port: int, path: str = "/") -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if lacks := missing():
        pytest.skip(lacks)
    stack = Stack()
    stack.compose("down", "-v", "--timeout", "5")
    try:
        began = time.monotonic()
        stack.compose("build", timeout=1800)
        size = subprocess.run(
            ["docker", "image", "inspect", "-f", "{{.Size}}", "dpsql"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        said(f"built in {time.monotonic() - began:.0f} s; dpsql has {int(size) / 1e9:.2f} GB")
        assert int(size) < 2.1e9
        stack.compose("up", "-d", timeout=600)
        yield stack
        began = time.monotonic()
        stack.compose("stop", "job")
        log = stack.compose("logs", "--no-log-prefix", "job")
        assert "stopped; the same command continues from here" in log[-400:], log[-2000:]
        said(f"stopped politely in {time.monotonic() - began:.0f} s")
    finally:
        stack.compose("down", "-v", "--timeout", "5")


def test_a_live_histogram_comes_to_a_page_and_a_notebook(stack: Stack) -> None:
    def rows() -> bool:
        job = stack.compose("ps", "-a", "--format", "{{.Service}} {{.State}} {{.ExitCode}}")
        assert not re.search(r"^job exited", job, re.MULTILINE), stack.compose("logs", "job")[
            -3000:
        ]
        return "#en.wikipedia" in opened(stack.page)

    wait_until(rows, "a page with rows", 400)
    said(f"live rows on the page and in the notebook: {stack.newest()}")
    assert "#en.wikipedia" in stack.inside(
        "notebook", "/opt/dpsql/.venv/bin/python", "-c", NOTEBOOK
    )
    assert "Jupyter" in opened(stack.notebook, "/login")
    assert [stack.inside(reader, "ls", "/lake").split() for reader in READERS] == [
        ["public"],
        ["public"],
    ]
    assert stack.compose(*LOOK).startswith("edits: running; ")


def test_kills_and_restarts_change_no_row(stack: Stack) -> None:
    """A second run has cores beside the live one; worker and master are killed under both, Kafka goes on from its volume, and the live one is
    started anew."""
    containers = set(stack.compose("ps", "-q").split())
    run = subprocess.Popen(
        ["docker", "compose", "--project-directory", str(CHECKOUT), "-p", PROJECT, *SECOND],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    time.sleep(45)
    assert containers <= set(stack.compose("ps", "-q").split()), (
        "a second run throws the cluster away"
    )
    before = stack.newest()
    for service in ("worker", "master"):
        stack.inside(service, "sh", "-c", KILL, check=False)
        said(f"killed a {service} beside two runs")
        time.sleep(10)
    stack.compose("up", "-d", "--force-recreate", "--no-deps", "kafka")
    stack.compose("restart", "job")
    said("made Kafka's container anew and restarted the job")
    out = run.communicate(timeout=600)[0]
    assert run.returncode == 0, out
    verified = stack.inside(
        "job", "dpsql", "verify", "demo", "--sources", "conf-mounted/sources.yaml"
    )
    assert verified.startswith("identical: all "), verified
    said(verified.splitlines()[0])
    stack.goes_on(before)
    restarts = subprocess.run(
        ["docker", "inspect", "-f", "{{.RestartCount}}", stack.containers()["job-1"]],
        capture_output=True,
        text=True,
        check=True,
    )
    said(
        f"the live run goes on, restarted by Docker {restarts.stdout.strip()} times: {stack.newest()}"
    )


def docker(*words: str) -> str:
    """Return what a command of Docker prints."""
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_five_kills_of_the_job_leave_it_at_work(stack: Stack) -> None:
    """Catches: a restart policy that counts the failures in the life of a container."""
    before = stack.newest()
    name = stack.containers()["job-1"]
    for _ in range(5):
        stack.inside("job", "sh", "-c", KILL_JOB, check=False)
        time.sleep(12)
    assert docker("inspect", "-f", STATE, name) == "running unless-stopped local"
    assert int(docker("inspect", "-f", "{{.RestartCount}}", name)) >= 5
    stack.goes_on(before)
    said(f"the live run goes on after five kills: {stack.newest()}")


def test_a_refused_job_waits_for_a_person(stack: Stack) -> None:
    """Catches: a wrong declaration that is tried for ever, and a message that is not the last line."""
    name = f"{PROJECT}-refused"
    stack.compose("run", "-d", "--no-deps", "--name", name, "-e", "DPSQL_SOURCES=none.yaml", "job")
    try:
        health = ("inspect", "-f", "{{.State.Health.Status}}", name)
        wait_until(lambda: docker(*health) == "unhealthy", "the job is unhealthy", 60)
        assert docker("inspect", "-f", "{{.State.Status}}", name) == "running"
        log = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True)
        assert "none.yaml: no such file" in (log.stdout + log.stderr).splitlines()[-1]
    finally:
        docker("rm", "-f", name)


def ports_of(stack: Stack, name: str) -> dict[str, list[int]]:
    """The ports that are listened on in a container: of its address in the network, and of its loopback alone."""
    text = subprocess.run(
        ["docker", "exec", name, "sh", "-c", LISTENING], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, set[int]] = {"network": set(), "loopback": set()}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A":
            address, _, port = fields[1].rpartition(":")
            # 127.0.0.11 is Docker's own, for names
            own = address.endswith(("0100007F", "0B00007F")) or address == "0" * 24 + "01000000"
            if not address.endswith("0B00007F"):
                found["loopback" if own else "network"].add(int(port, 16))
    return {kind: sorted(ports) for kind, ports in found.items()}


def asked(places: list[str], *how: str) -> dict[str, Any]:
    """What a stranger gets of places, from where `how` says."""
    command = [
        *how,
        "python3" if how else sys.executable,
        "-S",
        f"{'/clients' if how else CLIENTS}/port_client.py",
        *places,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_no_port_runs_kills_or_tells_anything_without_the_secret(stack: Stack) -> None:
    """Asked from another container of the same network, as another user inside each container, and as another user of the machine."""
    shared = re.search(
        r"secret ([0-9a-f]{64})", stack.inside("job", "cat", "/spark-conf/spark-defaults.conf")
    )
    secret = (
        stack.inside("job", "od", "-An", "-tx1", "/secret/secret")
        .replace(" ", "")
        .replace("\n", "")
    )
    assert shared and secret
    user = "import pyarrow.parquet as p; print(p.read_table('/opt/dpsql/conf/demo/wiki').column('user_id')[0])"
    password = re.search(
        r'password="([0-9a-f]{64})"', stack.inside("job", "cat", "/kafka-secret/login")
    )
    assert password
    needles = (
        shared[1],
        secret,
        password[1],
        stack.inside("job", "python", "-c", user).strip(),
        "#en.wikipedia",
    )
    before = stack.newest()
    containers = stack.containers()
    client = ["docker", "run", "--rm", "-i", "-v", f"{CLIENTS}:/clients:ro", "--network"]
    for number, name in sorted(containers.items()):
        service = number.rpartition("-")[0]
        address = next(iter(json.loads(subprocess.run(
            ["docker", "inspect", "-f", "{{json .NetworkSettings.Networks}}", name], capture_output=True, text=True, check=True
        ).stdout).values()))["IPAddress"]  # fmt: skip
        ports = ports_of(stack, name)
        places = [f"{address}:{port}" for port in ports["network"]]
        network = f"{PROJECT}_{'reading' if service in READERS else 'cluster'}"
        answers = (
            {
                ("a container beside it", place): got
                for place, got in asked(places, *client, network, "dpsql").items()
            }
            if places
            else {}
        )
        answers |= (
            {("a user of the machine", place): got for place, got in asked(places).items()}
            if places
            else {}
        )
        inner = [f"127.0.0.1:{port}" for port in (*ports["network"], *ports["loopback"])]
        if inner:
            answers |= {
                ("a user inside", place): got
                for place, got in asked(inner, *client, f"container:{name}", "dpsql").items()
            }
        for (who, place), got in answers.items():
            said(
                f"{number} {place} asked by {who}: {got['is']}, {len(got['pages'])} pages, {len(got['blocks'])} blocks"
            )
            assert (
                not got["ran"] and not got["blocks"] and not (got["pages"] and service == "kafka")
            ), (number, place, got)
            # Page and notebook show what is published
            told = [
                needle
                for needle in needles[: 4 if service in READERS else 5]
                if needle in json.dumps(got)
            ]
            assert not told, (number, place, told)
        if service not in READERS and places:
            out = [
                "docker",
                "run",
                "--rm",
                "--network",
                f"{PROJECT}_reading",
                "dpsql",
                "python",
                "-c",
            ]
            code = f"import socket; [socket.create_connection(('{address}', port), 3) for port in {ports['network']}]"
            assert subprocess.run([*out, code], capture_output=True, check=False).returncode != 0, (
                f"{number} can be reached by readers"
            )
    for words in SUBMISSIONS:
        command = [
            "docker",
            "run",
            "--rm",
            "--network",
            f"{PROJECT}_cluster",
            "dpsql",
            "timeout",
            "90",
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        why = re.findall(r"\S*Exception.*", done.stdout + done.stderr)
        said(
            f"{' '.join(words[:4])} without the secret: exit code {done.returncode}, {why[-1][:150] if why else 'it waits'}"
        )
    master = stack.compose("logs", "--no-log-prefix", "master")
    applications = set(re.findall(r"Registered app (\S+)", master))
    assert (
        applications == {"dpsql"}
        and "Driver submitted" not in master
        and "Launching driver" not in master
    ), applications
    stack.goes_on(before)
