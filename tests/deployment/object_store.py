"""An S3 server on loopback (moto): its conditional requests are not atomic, so it proves no race."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.deployment.processes import Daemon, free_ports, listens

ACCESS_KEY = "planted-access-key"
SECRET_KEY = "planted-secret-key"


class ObjectStore:
    """One bucket, `lake`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        self.environment |= {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._log = folder / "s3.log"

    def __enter__(self) -> ObjectStore:
        server = Path(sys.executable).parent / "moto_server"
        self._daemon = Daemon([str(server), "-H", "127.0.0.1", "-p", str(self.port)], self._log)
        self._daemon.wait_for(lambda: listens(self.port))
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/lake", method="PUT"), timeout=10
        ).close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._daemon.stop()
        assert not listens(self.port)
