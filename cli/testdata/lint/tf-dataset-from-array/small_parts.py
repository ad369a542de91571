"""Arrays that are handed to TensorFlow: what is large and what is small beside it."""

import numpy as np
import pandas as pd
import tensorflow as tf

from pictures import decoded

lengths = np.load("lengths.npy")  # hint: dataset-read-whole
weights = np.load("weights.npy")
pixels = np.load("pixels.npy")  # hint: dataset-read-whole
table = pd.read_csv("table.csv")  # hint: dataset-read-whole
points = np.loadtxt("points.txt")

beside = tf.data.Dataset.from_tensor_slices((decoded("train"), lengths))
weighted = tf.data.Dataset.from_tensor_slices((decoded("test"), weights))
whole = tf.data.Dataset.from_tensor_slices((pixels, weights))  # expect: tf-dataset-from-array
y_train = np.load("y.npy")
second = tf.data.Dataset.from_tensor_slices((y_train, pixels))  # expect: tf-dataset-from-array
rows = tf.data.Dataset.from_tensor_slices(table)  # hint: tf-dataset-from-array
fixed = tf.constant(points)  # hint: tf-constant-dataset
