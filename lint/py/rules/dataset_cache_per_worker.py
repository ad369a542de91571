"""Dataset cache in every worker.

severity: warning
remedy: dataloader_workers

Each DataLoader worker is a process with its own copy of the dataset object. After an epoch the
cached samples lie in host memory once for each worker.

Instead: Cache on disk (np.memmap, LMDB, Arrow) or in shared memory, bound the cache
(lru_cache(maxsize=256)), or use num_workers=0.
"""
