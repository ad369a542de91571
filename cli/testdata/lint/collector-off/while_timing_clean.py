"""Off for a measurement only."""

import gc
import time


def timed(model, optimizer, batches):
    gc.disable()
    began = time.perf_counter()
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    took = time.perf_counter() - began
    gc.enable()
    return took
