"""Applies remedies inside the user's process. Entry: install(remedies, say).

Each remedy is {"id": ..., "params": {...}}; say takes one dict for each thing done or declined:
{"remedy": id, "state": "applied" | "declined" | "note", "reason": ..., ...}. Nothing here raises into the user's program
before the remedy is in place; a remedy that cannot be had is declined with the reason and training goes on without it.
"""


def install(remedies, say):
    from . import registry

    for remedy in remedies:
        try:
            registry.apply(remedy, say)
        except Exception as why:  # a remedy must not stop the program it is meant to save
            say({"remedy": remedy.get("id", "?"), "state": "declined", "reason": "%s: %s" % (type(why).__name__, why)})
