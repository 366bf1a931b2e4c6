"""The SQL front end: text in, ParsedQuery or a QueryError out."""

from dpsql.sql.not_yet import NOT_YET
from dpsql.sql.parse import parse_query

__all__ = ["NOT_YET", "parse_query"]
