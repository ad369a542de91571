"""Dataset cache without a bound.

severity: info
remedy: stream_data

After an epoch the whole dataset lies in host memory.

Instead: Cache on disk (np.memmap, LMDB, Arrow), or bound the cache (lru_cache(maxsize=256)).
"""
