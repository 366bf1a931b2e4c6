"""The SQL front end: text in, ParsedQuery or a QueryError out."""

from dpsql.sql.parse import parse_query

__all__ = ["parse_query"]
