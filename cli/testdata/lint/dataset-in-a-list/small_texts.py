"""Test sets and texts are small, curves are drawn, and a cache has its file."""

import datasets
import tensorflow as tf
from datasets import load_dataset


def few_shots(model):
    rows = load_dataset("lucasmccabe/logiqa", split="test")
    pool = list(rows)  # hint: dataset-in-a-list
    return [model.generate(r["query"]) for r in pool]


def cleaned(strip):
    rows = datasets.load_dataset("HuggingFaceH4/stack-exchange-preferences")["train"]

    def clean(row):
        row["question"] = strip(row["question"])
        return row

    return rows.map(clean, num_proc=64)


def patches(paths, read, path=None):
    data = tf.data.Dataset.from_tensor_slices(paths).map(read).map(tf.image.decode_png)
    if path:
        data = data.cache(path)
    else:
        data = data.cache()  # hint: tf-data-buffers
    return data.batch(8)


def split_of(name):
    return [{"query": name}]


def elsewhere():
    train_rows = load_dataset("allenai/c4", split="train")
    return next(iter(train_rows))


def here(name):
    train_rows = split_of(name)
    return list(train_rows)
