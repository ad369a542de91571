"""Large file read whole.

severity: warning
remedy: stream_data

All of it lies in host memory for the whole run, and each copy (astype, a shuffle, a split) comes
on top.

Instead: Map it (`np.load(path, mmap_mode="r")`), read it in pieces, or stream it
(`memroom.Stream(path)`).
"""

from ..whole import check

CHECKS = (check,)
