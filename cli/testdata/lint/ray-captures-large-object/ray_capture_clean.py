import numpy as np
import ray

ray.init()
table = np.load("embeddings.npy")
shared = ray.put(table)


@ray.remote
def nearest(query, table):
    return int(np.argmin(((table - query) ** 2).sum(1)))


futures = [nearest.remote(q, shared) for q in np.load("queries.npy")]
print(ray.get(futures))
