import numpy as np
import ray

ray.init()
table = np.load("embeddings.npy")


@ray.remote
def nearest(query):
    return int(np.argmin(((table - query) ** 2).sum(1)))  # expect: ray-captures-large-object


futures = [nearest.remote(q) for q in np.load("queries.npy")]
print(ray.get(futures))
