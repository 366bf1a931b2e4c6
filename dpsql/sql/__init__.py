"""The SQL front end: text in, ParsedQuery or a QueryError out (`dpsql.sql.parse.parse_query`)."""
