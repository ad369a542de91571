"""Hands over to the parts that change or rehearse the user's program, when the environment asks for
them.
"""

from __future__ import annotations

import os

from . import faults

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Mapping


def _say(kind: str, text: str, **fields: object) -> object:
    """Tells the monitor what a part did or declined; `kind` is a word such as "applied" or
    "declined".
    """
    from . import link

    fields.update({"kind": kind, "text": text})
    return link.send("said", fields)


def enter(environ: Mapping[str, str]) -> None:
    """Starts what the environment asks for. A part that breaks is told to the monitor; the others
    still start.
    """
    asked = _read(environ["MEMROOM_APPLY"]) if "MEMROOM_APPLY" in environ else {}
    for part in (_settings, _fit, _rehearse):
        try:
            part(asked, environ)
        except Exception as error:
            faults.note(part.__name__.strip("_"), error)


def _settings(asked: dict[Any, Any], environ: Mapping[str, str]) -> None:
    remedies = _of_level(asked, "env")
    if remedies:
        from . import settings

        settings.install(remedies, _say)


def _fit(asked: dict[Any, Any], environ: Mapping[str, str]) -> None:
    remedies = _of_level(asked, "process")
    if remedies:
        from . import fit

        fit.install(remedies, _say)


def _rehearse(asked: dict[Any, Any], environ: Mapping[str, str]) -> None:
    if "MEMROOM_REHEARSE" in environ:
        from . import rehearse

        rehearse.install(asked.get("target") or {}, environ["MEMROOM_REHEARSE"])


def _of_level(asked: dict[Any, Any], level: str) -> list[dict[Any, Any]]:
    return [
        r for r in asked.get("remedies") or [] if isinstance(r, dict) and r.get("level") == level
    ]


def _read(path: str) -> dict[Any, Any]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            asked = json.load(file)
        return asked if isinstance(asked, dict) else {}
    except (OSError, ValueError) as error:
        faults.note("MEMROOM_APPLY", error)
        _say("declined", "%s cannot be read: %s" % (os.path.basename(path), error))
        return {}
