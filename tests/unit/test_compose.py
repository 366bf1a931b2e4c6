"""docker-compose.yml, read strictly by the Compose specification; no container is started here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "docker-compose.yml").read_text()


def resolved() -> dict[str, Any]:
    """The file with YAML's merges done."""
    return dict(yaml.safe_load(TEXT))


def parse(document: dict[str, Any]) -> PyCompose:
    return PyCompose.from_yaml(yaml.safe_dump(document, sort_keys=False))


def test_it_is_a_compose_file() -> None:
    services = {"kafka", "keys", "master", "worker", "job", "notebook"}
    assert set(parse(resolved()).service_names()) == services
    assert set(resolved()["services"]) == services


@pytest.mark.parametrize(("service", "key", "value"), [("job", "comand", ["x"]), ("kafka", "ports", {"a": 1}), ("worker", "depends_on", 7)])
def test_a_mistake_in_it_is_found(service: str, key: str, value: Any) -> None:
    wrong = resolved()
    wrong["services"][service][key] = value
    with pytest.raises(Exception, match=r"."):
        parse(wrong)


def test_services_share_the_configuration_files_and_only_the_job_has_the_secret() -> None:
    services = resolved()["services"]
    mounts = {
        name: [v if isinstance(v, str) else f"{v['source']}:{v['target']}" for v in s.get("volumes", [])] for name, s in services.items()
    }
    assert {name for name, found in mounts.items() if any(one.startswith("./conf:") for one in found)} == {"worker", "job"}
    assert {name for name, found in mounts.items() if any(one.startswith("secret:") for one in found)} == {"job"}
    assert {name for name, found in mounts.items() if any(one.startswith("spark-conf:") for one in found)} == {
        "keys",
        "master",
        "worker",
        "job",
    }
    assert "--load-spark-defaults" in services["job"]["command"]
    assert mounts["notebook"] == ["lake:/lake/public"]
    assert [name for name, service in services.items() if "networks" in service] == ["notebook"], (
        "on the others' network nobody is a stranger"
    )
    named = {one.split(":")[0] for found in mounts.values() for one in found if not one.startswith(".")}
    assert named == set(resolved()["volumes"])
    command = services["job"]["command"]
    for path in (one.replace("conf-mounted", "conf") for one in command if re.search(r"\.(sql|py)$", one)):
        assert (CHECKOUT / path).is_file()
    assert f"apache/kafka:{re.search(r'kafka_2.13. rev=.([0-9.]+)', (CHECKOUT / 'conf/ivy.xml').read_text())[1]}" in TEXT  # type: ignore[index]


def test_the_file_and_the_page_close_a_cluster_alike(tmp_path: Path) -> None:
    """Its secret is made once, and for its owner alone."""
    words = [word.replace("/spark-conf", str(tmp_path)).replace("$$", "$") for word in resolved()["services"]["keys"]["command"]]
    made = []
    for _ in range(2):
        subprocess.run(words, check=True)
        made.append((tmp_path / "spark-defaults.conf").read_text())
    assert made[0] == made[1] and [path.name for path in tmp_path.iterdir()] == ["spark-defaults.conf"]
    page = re.search(r"^\(umask 077; .*?\)$", (CHECKOUT / "docs" / "deployment.md").read_text(), re.MULTILINE | re.DOTALL)
    assert page
    (tmp_path / "page").mkdir()
    subprocess.run(["sh", "-c", page[0]], env={"SPARK_CONF_DIR": str(tmp_path / "page"), "PATH": os.environ["PATH"]}, check=True)
    settings = "authenticate true", "network.crypto.enabled true", "master.rest.enabled false", "ui.killEnabled false"
    wanted = "".join(f"spark.{setting}\n" for setting in settings) + r"spark.authenticate.secret [0-9a-f]{64}\n"
    for folder in (tmp_path, tmp_path / "page"):
        file = folder / "spark-defaults.conf"
        assert file.stat().st_mode & 0o777 == 0o600
        assert re.fullmatch(wanted, file.read_text())
