"""The run of one `run_local`: a ledger line before anything is computed, and one input for one run id."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.compiled import Query
from dpsql.errors import LakeError
from dpsql.local.spark_types import SparkType
from dpsql.mechanisms.protocol import RunFacts
from dpsql.privacy.ledger import Ledger, cap_for
from dpsql.privacy.origin import origin_of
from dpsql.privacy.register import Entry
from dpsql.privacy.secret import Secret
from dpsql.udfs.columns import plain_rows

KIND = "local"


@dataclass(frozen=True)
class LocalRun:
    """A run id that may be used for one input.

    Args:
        run_id: 32 hexadecimal digits.
        is_repeatable: the caller gave the run id and may give it again.
        secret, ledger: of the run; the secret is bound to the ledger's id.
    """

    run_id: str
    is_repeatable: bool
    secret: Secret
    ledger: Ledger

    def check_input(self, rows: pa.Table, key_types: Sequence[SparkType], facts: RunFacts) -> None:
        """Refuse another input under the same run id: equal noise would show the exact difference.

        Args:
            rows: what FROM makes of the records, static tables included.
            key_types: of the keys.
            facts: the groups that are released without selection, and the first window.

        Raises:
            LakeError: the run id has seen another input.
        """
        if not self.is_repeatable:
            return  # nobody else knows the run id, and nobody can give it: it has a line and no entry
        # Public groups are in one order, whatever the table that lists them has.
        fingerprint = self.secret.fingerprint(
            _digest([_records(rows), repr((tuple(key_types), facts)).encode()])
        )
        entry = self.ledger.register.find(self.run_id)
        if entry is None:
            self.ledger.register.add(Entry(self.run_id, given=fingerprint))
        elif entry.given != fingerprint:
            raise LakeError(
                f"run {self.run_id} has seen other records (or another order of them, other types, another list of public groups or another "
                "start of the stream): the same noise on two inputs shows their exact difference. Leave run_id away for a new run"
            )


def _records(rows: pa.Table) -> bytes:
    rows = plain_rows(rows)
    digest = hashlib.sha256()
    for name in rows.column_names:
        if not pa.types.is_binary(
            rows.schema.field(name).type
        ):  # the key's bytes: its id says the same
            digest.update(name.encode() + rows.column(name).to_numpy().tobytes())
    return digest.digest()


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def open_local_run(
    query: Query, secret: Secret, run_id: str | None, ledger: Ledger | None
) -> LocalRun:
    """Return a new run with its ledger line, or, for a run id that was given before, that run.

    Raises:
        BudgetError: a new run would exceed the source's cap; there is no ledger.
        LakeError: the run id is malformed, or belongs to another query or to a run of another kind.
    """
    ledger = (ledger or Ledger.beside_secret(secret)).sealed_by(secret)
    is_repeatable = run_id is not None
    run_id = secrets.token_hex(16) if run_id is None else run_id
    if not re.fullmatch(r"[0-9a-f]{32}", run_id):
        raise LakeError("run_id: a run id has 32 hexadecimal digits, like secrets.token_hex(16)")
    ledger_line = ledger.find(run_id)
    if ledger_line is None:
        ledger_id = ledger.own_id()
        origin = origin_of(query.source, ledger_id, level=query.protects)
        cap = cap_for(query.source, query.protects)
        line = query.line(run_id, KIND, origin)
        ledger.append(line, cap, of_frame=query.source.of_frame)
        return LocalRun(run_id, is_repeatable, secret.of_ledger(ledger_id), ledger)
    if (ledger_line.kind, ledger_line.query_identity) != (KIND, query.plan.identity):
        raise LakeError(
            f"run {run_id} belongs to another query or another kind of run; leave run_id away for a new run"
        )
    if ledger.register.find(run_id) is None:
        raise LakeError(
            f"run {run_id} ended before it had its records, or was not given a run_id; leave run_id away for a new run"
        )
    ledger.check_is_home()
    return LocalRun(run_id, is_repeatable, secret.of_ledger(ledger_line.origin.ledger_id), ledger)
