"""What other programs do to Delta tables and deltalake cannot write: commits after the protocol's text, made by hand."""

from __future__ import annotations

import base64
import json
import string
import struct
from pathlib import Path
from typing import Any

B85 = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
Z85 = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
NO_RUNS = 12346
ARRAY_OF_BITMAPS = 1681511377
"""Numbers that Roaring bitmaps, and Delta's arrays of them, begin with."""


def delete_first_rows(table: Path, count: int) -> None:
    """Delete the first rows of the only file of a table by a vector inside of the commit."""
    added = _entry(table, "add")
    values = struct.pack(f"<{count}H", *range(count))
    bitmap = struct.pack("<IIHHI", NO_RUNS, 1, 0, count - 1, 16) + values
    content = struct.pack("<iqI", ARRAY_OF_BITMAPS, 1, 0) + bitmap
    padded = content + bytes(-len(content) % 4)
    text = base64.b85encode(padded).decode().translate(str.maketrans(B85, Z85))
    vector = {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(content),
        "cardinality": count,
    }
    removed = {
        "path": added["path"],
        "deletionTimestamp": added["modificationTime"] + 1,
        "dataChange": True,
    }
    _commit(
        table,
        _features("deletionVectors", "columnMapping"),
        {"remove": removed},
        {"add": {**added, "deletionVector": vector}},
    )


def refuse_readers(table: Path, feature: str) -> None:
    """Give a new table a feature that its readers must know."""
    _commit(table, _features(feature))


def rename_columns(table: Path, names: dict[str, str | None], mode: str = "name") -> None:
    """Map the columns of a new table and rename some, or (None) drop them; the files keep the old names."""
    metadata = _entry(table, "metaData")
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": field["name"],
        }
        field["name"] = names.get(field["name"], field["name"])
    schema["fields"] = [field for field in schema["fields"] if field["name"]]
    mapping = {
        "delta.columnMapping.mode": mode,
        "delta.columnMapping.maxColumnId": str(len(schema["fields"])),
    }
    configuration = {**metadata["configuration"], **mapping}
    mapped = {
        **metadata,
        "schemaString": json.dumps(schema),
        "configuration": configuration,
        "partitionColumns": [names.get(name, name) for name in metadata["partitionColumns"]],
    }
    _commit(
        table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": mapped}
    )


def _entry(table: Path, action: str) -> Any:
    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    return next(line[action] for line in map(json.loads, lines) if action in line)


def _features(*names: str) -> dict[str, Any]:
    """Return the protocol of a table that uses some features."""
    features = {"readerFeatures": names, "writerFeatures": names}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


def _commit(table: Path, *actions: dict[str, Any]) -> None:
    information = {"commitInfo": {"timestamp": 1, "operation": "BY HAND"}}
    lines = [json.dumps(action) for action in (information, *actions)]
    log = table / "_delta_log"
    version = len(list(log.glob("*.json")))
    (log / f"{version:020}.json").write_text("\n".join(lines) + "\n")
