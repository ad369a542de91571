import ray
import torch

ray.init()
data = torch.load("train_data.pt")


@ray.remote
def work(d, i):
    return d[i].sum()


futures = []
ref = ray.put(data)
for i in range(1000):
    futures.append(work.remote(ref, i))
print(sum(ray.get(futures)))
