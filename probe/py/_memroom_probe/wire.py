"""The messages to and from the monitor: one JSON object a line, see docs/format/probe.md.

The probe writes JSON by itself, because importing `json` would double its start-up; it reads with
`json`, imported when the first command arrives. Golden lines in probe/testdata/wire hold this and
the Go side together.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 1

# Columns of a row of a `steps` message, in order.
STEP_COLUMNS = (
    "step",
    "device",
    "end_us",
    "duration_us",
    "wait_us",
    "backward_us",
    "optimizer_us",
    "micro_batches",
    "allocated",
    "reserved",
    "peak_allocated",
    "at_backward",
    "inactive_split",
    "retries",
    "ooms",
    "resident",
    "anonymous",
    "heap",
)

try:
    from _json import encode_basestring_ascii as _quote
except ImportError:  # an interpreter without the accelerator

    def _quote(text: str) -> str:  # type: ignore[misc]
        import json

        return json.dumps(text)


def dumps(value: object) -> str:
    """JSON of None, bool, int, float, str, list, tuple and dict, without spaces."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"  # JSON has no infinity
    if isinstance(value, str):
        return _quote(str(value))
    if isinstance(value, dict):
        return "{" + ",".join([_quote(str(k)) + ":" + dumps(v) for k, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([dumps(v) for v in value]) + "]"
    return _quote(str(value))


def line(kind: str, fields: dict[str, Any]) -> bytes:
    """One message as bytes, newline included."""
    message: dict[str, Any] = {"t": kind}
    message.update(fields)
    return (dumps(message) + "\n").encode("ascii")


def parse(data: bytes | bytearray) -> dict[str, Any] | None:
    """A command as a dict, or None if the line is not one."""
    import json

    try:
        message = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.get("t") == "do" else None
