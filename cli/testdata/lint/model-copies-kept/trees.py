"""JAX: gradients of every step; Ray: a table that a helper of the file reads; a mapped file whole."""

import jax
import numpy as np
import pandas as pd
import ray
import torch


def train(step, params, batches):
    log, norms = [], []
    for x in batches:
        loss, grads = jax.value_and_grad(step)(params, x)
        log.append(grads)  # expect: model-copies-kept
        norms.append(float(loss))
    return log, norms


@ray.remote
def fold(table, i):
    return table.iloc[i].sum()


def read(path):
    table = pd.read_parquet(path)
    return table


def folds(path):
    table = read(path)
    shared = ray.put(table)
    one = [fold.remote(table, i) for i in range(50)]  # expect: ray-passes-large-object
    return one + [fold.remote(shared, i) for i in range(50)]


def mapped(path, model, opt):
    data = np.load(path, mmap_mode="r")
    fields = torch.from_numpy(np.ascontiguousarray(data)).to("cuda")  # expect: dataset-on-gpu
    for i in range(0, len(fields), 16):
        opt.zero_grad()
        model(fields[i : i + 16]).mean().backward()
        opt.step()


def mapped_clean(path, model, opt):
    data = torch.from_numpy(np.load(path, mmap_mode="r"))
    for i in range(0, len(data), 16):
        opt.zero_grad()
        model(data[i : i + 16].to("cuda")).mean().backward()
        opt.step()


def gradients(model, loader, opt):
    """One number of each is small, the gradients themselves are as large as the model."""
    model.cuda()
    record, norms = {name: [] for name, _ in model.named_parameters()}, []
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        for name, p in model.named_parameters():
            norms.append(p.grad.norm())
            record[name].append(p.grad.clone())  # expect: model-copies-kept
        opt.step()
    return record, norms
