"""The run of one `run_local`: a ledger line before anything is computed, and one input for one run id."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

import pyarrow as pa

from dpsql.compiled import Query
from dpsql.errors import BudgetError, LakeError
from dpsql.ledger import Ledger, line_of
from dpsql.run_register import Entry
from dpsql.secret import Secret

KIND = "local"


@dataclass(frozen=True)
class LocalRun:
    """A run id that may be used for one input.

    Args:
        run_id: 32 hexadecimal digits.
        named: the caller gave the run id and may give it again.
        secret, ledger: of the run.
    """

    run_id: str
    named: bool
    secret: Secret
    ledger: Ledger

    def check_input(self, rows: pa.Table) -> None:
        """Refuse other records under the same run id: equal noise would show their exact difference.

        Args:
            rows: what FROM makes of the records, static tables included.

        Raises:
            LakeError: the run id has seen other records.
        """
        if not self.named:
            return  # nobody else knows the run id, and nobody can give it: it has a line and no entry
        digest = hashlib.sha256()
        for name in rows.column_names:
            if not pa.types.is_binary(rows.schema.field(name).type):  # the key's bytes: its id says the same
                digest.update(name.encode() + rows.column(name).to_numpy().tobytes())
        given = self.secret.fingerprint(digest.digest())
        entry = self.ledger.register.find(self.run_id)
        if entry is None:
            self.ledger.register.add(Entry(self.run_id, given=given))
        elif entry.given != given:
            raise LakeError(
                f"run {self.run_id} has seen other records (or another order of them): the same noise on two inputs shows their exact "
                "difference. Leave run_id away for a new run"
            )


def open_local_run(query: Query, secret: Secret, run_id: str | None, ledger: Ledger | None) -> LocalRun:
    """A new run with its ledger line, or, for a run id that was given before, that run.

    Raises:
        BudgetError: a new run would exceed the source's cap; there is no ledger.
        LakeError: the run id is malformed, or belongs to another query or to a run of another kind.
    """
    if ledger is None:
        if secret.path is None:
            raise BudgetError(
                "this secret has no file, so no ledger beside it: use Secret.load(path), or name one with ledger=Ledger(folder)"
            )
        ledger = Ledger.beside(secret.path)
    run = LocalRun(secrets.token_hex(16) if run_id is None else run_id, run_id is not None, secret, ledger)
    if not re.fullmatch(r"[0-9a-f]{32}", run.run_id):
        raise LakeError("run_id: a run id has 32 hexadecimal digits, like secrets.token_hex(16)")
    known = next((line for line in ledger.lines() if line.run_id == run.run_id), None)
    if known is None:
        ledger.append(line_of(query.plan, query.source, run.run_id, KIND), query.source.cap)
    elif (known.kind, known.query_identity) != (KIND, query.plan.identity):
        raise LakeError(f"run {run.run_id} belongs to another query or another kind of run; leave run_id away for a new run")
    elif ledger.register.find(run.run_id) is None:
        raise LakeError(f"run {run.run_id} ended before it had its records, or was not given a run_id; leave run_id away for a new run")
    return run
