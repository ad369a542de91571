import ray
import torch

ray.init()
data = torch.load("train_data.pt")


@ray.remote
def work(d, i):
    return d[i].sum()


futures = []
for i in range(1000):
    ref = ray.put(data)  # expect: ray-passes-large-object
    futures.append(work.remote(ref, i))
print(sum(ray.get(futures)))


@ray.remote
def work_clean(d, i_clean):
    return d[i_clean].sum()


ref_clean = ray.put(data)
for i_clean in range(1000):
    futures.append(work_clean.remote(ref_clean, i_clean))
