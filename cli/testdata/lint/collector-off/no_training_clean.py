"""A loader of tables: nothing trains here."""

import gc
import json


def rows(path):
    gc.disable()
    with open(path) as f:
        return [json.loads(line) for line in f]
