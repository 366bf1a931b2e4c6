"""Other values for options of a query's text; everything else, comments and layout included, stays as written."""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.sources.config import Source
from dpsql.sql.parse import read_draft


def edit_options(text: str, sources: Mapping[str, Source], changes: Mapping[str, str]) -> str:
    """The text with these options.

    Args:
        text: an accepted query.
        sources: what its FROM may name.
        changes: option -> value as it is to be written. An option that is not there is added after the last one.
    """
    draft = read_draft(text, sources)
    options = {name: draft.given(name) for name in changes}
    edits = [(option.value_span, changes[name]) for name, option in options.items() if option]
    added = "".join(f", {name} = {value}" for name, value in changes.items() if not options[name])
    end = max(given.value_span[1] for given in draft.givens)
    edits.append(((end, end), added))
    # from the last to the first, so that places stay what they are; at the same end the value goes before what is added after it
    for (start, stop), value in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + value + text[stop:]
    return text
