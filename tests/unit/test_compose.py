"""docker-compose.yml, read strictly by the Compose specification; no container is started here."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

import dpsql

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "docker-compose.yml").read_text()


def resolved() -> dict[str, Any]:
    return dict(yaml.safe_load(TEXT))


def parse(document: dict[str, Any]) -> PyCompose:
    """Read as Compose would; the reader knows no variables."""
    return PyCompose.from_yaml(
        re.sub(r"\$\{\w+:-(\w+)\}", r"\1", yaml.safe_dump(document, sort_keys=False))
    )


def mounts(document: dict[str, Any]) -> dict[str, list[str]]:
    return {
        name: list(service.get("volumes", [])) for name, service in document["services"].items()
    }


def mounting(document: dict[str, Any], volume: str) -> set[str]:
    return {
        name
        for name, found in mounts(document).items()
        if any(one.split(":")[0] == volume for one in found)
    }


def mistakes(document: dict[str, Any]) -> list[str]:
    """What would make the file give something away, lose something, or throw a cluster away."""
    services = document["services"]
    text = yaml.safe_dump(document)
    keys = services["keys"]["command"][-1]
    kafka = services["kafka"]
    job = services["job"]
    built = [service["image"] for service in services.values() if "build" in service]
    logs = kafka["environment"].get("KAFKA_LOG_DIRS", "/tmp")
    listeners = {one.split("://")[0] for one in kafka["environment"]["KAFKA_LISTENERS"].split(",")}
    asking = set(
        re.findall(
            r"(\w+):SASL_", kafka["environment"].get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "")
        )
    )
    readers = {"page", "notebook"}
    wrong = {
        "a master runs the programs of strangers": "'master.rest.enabled false'" not in keys
        or "'ui.killEnabled false'" not in keys,
        "old engines ignore subpath": "subpath" in text,
        "an image is built twice": sorted(built) != ["dpsql", "dpsql-notebook"],
        "an image is asked of a registry": any(
            s["image"] == "dpsql" and s.get("pull_policy") != "never" for s in services.values()
        ),
        "Kafka keeps nothing": not any(
            logs.startswith(one.split(":")[1]) for one in kafka["volumes"]
        ),
        "Kafka lets strangers in": asking != listeners,
        "the password of Kafka is not from its file": any(
            kafka["environment"].get(f"KAFKA_LISTENER_NAME_{one}_PLAIN_SASL_JAAS_CONFIG")
            != "$${directory:/kafka-secret:login}"
            for one in listeners
        ),
        "others than Kafka and its clients have its password": mounting(document, "kafka-secret")
        != {"keys", "kafka", "feed", "worker", "job"},
        "others than the job have the secret of the noise": mounting(document, "secret") != {"job"},
        "others than the cluster have its secret": mounting(document, "spark-conf")
        != {"keys", "master", "worker", "job"},
        "others than the cluster have the private half": mounting(document, "private")
        != {"worker", "job"},
        "readers have more than the public half": any(
            mounts(document)[name] != ["public:/lake/public:ro"] for name in readers
        ),
        "readers reach the cluster": any(
            services[name]["networks"] != ["reading"] for name in readers
        )
        or any(
            "reading" in service["networks"]
            for name, service in services.items()
            if name not in readers
        ),
        "a port is open to other machines": any(
            not port.startswith("127.0.0.1:")
            for s in services.values()
            for port in s.get("ports", [])
        ),
        "a port of the cluster is published": {
            name for name, service in services.items() if "ports" in service
        }
        != readers,
        "the job is not ended politely": "trap 'kill -TERM $$job' TERM" not in job["command"][-1]
        or not job["init"]
        or job["stop_grace_period"] != "2m",
        "a service stays down": {
            name for name, service in services.items() if service["restart"] != "unless-stopped"
        }
        != {"keys"},
        "a wrong query is started for ever": "test $$code = 2 ||" not in job["command"][-1]
        or "/tmp/refused" not in job.get("healthcheck", {"test": ""})["test"],
        "a log has no limit": any(
            service.get("logging") != {"driver": "local"} for service in services.values()
        ),
        "a master forgets": mounting(document, "recovery") != {"master"}
        or "'deploy.recoveryDirectory /recovery'" not in keys,
    }
    return [what for what, there in wrong.items() if there]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", []),
        ("'master.rest.enabled false' ", "", ["a master runs the programs of strangers"]),
        ("      KAFKA_LOG_DIRS: /var/lib/kafka/data\n", "", ["Kafka keeps nothing"]),
        ("DIRS: /var/lib/kafka/data", "DIRS: /opt/kafka/data", ["Kafka keeps nothing"]),
        ("CLUSTER:SASL_PLAINTEXT", "CLUSTER:PLAINTEXT", ["Kafka lets strangers in"]),
        ("CONTROLLER:SASL_PLAINTEXT", "CONTROLLER:PLAINTEXT", ["Kafka lets strangers in"]),
        (
            "${directory:/kafka-secret:login}",
            "Module required;",
            ["the password of Kafka is not from its file"],
        ),
        (
            "      - kafka-secret:/kafka-secret:ro\n",
            "",
            ["others than Kafka and its clients have its password"],
        ),
        (
            'volumes: ["public:/lake/public:ro"]',
            'volumes: ["lake:/lake"]',
            ["readers have more than the public half"],
        ),
        (
            "private:/lake/private",
            "lake:/lake/private",
            ["others than the cluster have the private half"],
        ),
        (
            "    networks: [reading]\n",
            "    networks: [reading, cluster]\n",
            ["readers reach the cluster"],
        ),
        ("127.0.0.1:${DPSQL_PAGE", "${DPSQL_PAGE", ["a port is open to other machines"]),
        ("    build: .\n", "", ["an image is built twice"]),
        ("test $$code = 2 || ", "", ["a wrong query is started for ever"]),
        (
            '    healthcheck: {test: ["CMD", "test", "!"',
            '    x: {test: ["CMD", "test", "!"',
            ["a wrong query is started for ever"],
        ),
        (" trap 'kill -TERM $$job' TERM;", "", ["the job is not ended politely"]),
        (
            "    # Longer than a micro-batch takes\n",
            "    restart: on-failure:3\n",
            ["a service stays down"],
        ),
        ("  logging: *logging\n\nservices:", "\nservices:", ["a log has no limit"]),
        (
            '    logging: *logging\n    volumes: ["public',
            '    volumes: ["public',
            ["a log has no limit"],
        ),
    ],
)
def test_the_file_gives_nothing_away(old: str, new: str, says: list[str]) -> None:
    assert old in TEXT
    assert mistakes(yaml.safe_load(TEXT.replace(old, new) if old else TEXT)) == says


def test_it_is_a_compose_file() -> None:
    services = {"kafka", "feed", "keys", "master", "worker", "job", "page", "notebook"}
    assert set(parse(resolved()).service_names()) == services
    named = {
        one.split(":")[0]
        for found in mounts(resolved()).values()
        for one in found
        if not one.startswith(".")
    }
    assert named == set(resolved()["volumes"])
    live = CHECKOUT / "conf" / "live"
    source = dpsql.compile(
        (live / "edits.sql").read_text(), dpsql.load_sources(live / "sources.yaml")
    ).source
    assert (
        source.format == "kafka"
        and ("kafka.sasl.jaas.config", "${directory:/kafka-secret:login}") in source.options
    )
    for path in re.findall(r"conf-mounted/\S+?\.(?:sql|py|yaml)", TEXT):
        assert (CHECKOUT / path.replace("conf-mounted", "conf")).is_file()
    assert (
        f"apache/kafka:{re.search(r'kafka_2.13. rev=.([0-9.]+)', (CHECKOUT / 'conf/ivy.xml').read_text())[1]}"
        in TEXT
    )  # type: ignore[index]


def test_what_is_secret_goes_into_no_image() -> None:
    lines = (CHECKOUT / ".dockerignore").read_text().split()
    assert lines[0] == "*" and not {"!demo-out", "!secrets", "!lake", "!tests", "!."} & set(lines)
    assert "secrets/" in (CHECKOUT / ".gitignore").read_text().split()


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("job", "comand", ["x"]), ("kafka", "ports", {"a": 1}), ("worker", "depends_on", 7)],
)
def test_a_mistake_in_it_is_found(service: str, key: str, value: Any) -> None:
    wrong = resolved()
    wrong["services"][service][key] = value
    with pytest.raises(Exception, match=r"."):
        parse(wrong)


def test_the_file_and_the_page_close_a_cluster_alike(tmp_path: Path) -> None:
    """Secrets are made once, and for their owners alone."""
    command = resolved()["services"]["keys"]["command"]
    assert "chown 1000 " in command[-1]  # Kafka's user in its image
    here = {
        "/spark-conf": str(tmp_path),
        "/kafka-secret": str(tmp_path),
        "$$": "$",
        "chown 1000 ": f"chown {os.getuid()} ",
    }
    for there, instead in here.items():
        command = [word.replace(there, instead) for word in command]
    made = []
    for _ in range(2):
        subprocess.run(command, check=True)
        made.append({path.name: path.read_text() for path in tmp_path.iterdir()})
    assert made[0] == made[1] and set(made[0]) == {"spark-defaults.conf", "login"}
    assert (tmp_path / "login").stat().st_mode & 0o777 == 0o600
    password = re.search(
        r'required username=dpsql password="([0-9a-f]{64})" user_dpsql="\1";$', made[0]["login"]
    )
    assert password and password[1] not in made[0]["spark-defaults.conf"]
    page = re.search(
        r"^\(umask 077; .*?\)$",
        (CHECKOUT / "docs" / "deployment.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert page
    (tmp_path / "page").mkdir()
    subprocess.run(
        ["sh", "-c", page[0]],
        env={"SPARK_CONF_DIR": str(tmp_path / "page"), "PATH": os.environ["PATH"]},
        check=True,
    )
    settings = {
        f"spark.{name}"
        for name in (
            "authenticate true",
            "network.crypto.enabled true",
            "master.rest.enabled false",
            "ui.killEnabled false",
        )
    }
    for folder in (tmp_path, tmp_path / "page"):
        file = folder / "spark-defaults.conf"
        assert file.stat().st_mode & 0o777 == 0o600
        *given, secret = file.read_text().splitlines()
        assert re.fullmatch(r"spark.authenticate.secret [0-9a-f]{64}", secret)
        assert settings <= set(given)
