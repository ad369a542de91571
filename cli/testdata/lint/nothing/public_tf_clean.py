"""One name for two pipelines: the second has no batch before its shuffle."""

import tensorflow as tf
import tensorflow_datasets as tfds

(ds_train, ds_test), info = tfds.load("mnist", split=["train", "test"], with_info=True)
ds_train = ds_train.map(lambda d: d["image"])
ds_train = ds_train.shuffle(1000).batch(32)

(ds_train, ds_test), info = tfds.load("imdb", split=["train", "test"], with_info=True)
ds_train = ds_train.map(lambda d: tf.strings.lower(d["text"]))
ds_train = ds_train.shuffle(1000)
ds_train = ds_train.padded_batch(32)

pairs = tf.data.Dataset.from_tensor_slices(list(range(9)))
pairs = (
    pairs.shuffle(1024)
    .map(lambda x: (x, x))
    .batch(32)
)
