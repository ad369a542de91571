"""Keras `fit` on arrays in memory: the data is held as NumPy arrays, copied into the runtime, and
the batch is large.

With --pipeline the same data comes from a tf.data pipeline that holds two batches at a time.

"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf


def batch_of(index, size, width):
    rng = np.random.default_rng(index)
    x = rng.random((size, width), dtype=np.float32)
    return x, x.sum(axis=1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pipeline", action="store_true", help="do it right")
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((args.width,)),
            tf.keras.layers.Dense(args.width, activation="relu"),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    if args.pipeline:
        data = tf.data.Dataset.from_generator(
            lambda: (batch_of(i, args.batch, args.width) for i in range(args.batches)),
            output_signature=(tf.TensorSpec((None, args.width)), tf.TensorSpec((None, 1))),
        ).prefetch(2)
        history = model.fit(data, epochs=args.epochs, steps_per_epoch=None, verbose=2)
    else:
        parts = [batch_of(i, args.batch, args.width) for i in range(args.batches)]
        x, y = (
            np.concatenate(columns) for columns in zip(*parts)
        )  # the data twice: the parts and the whole
        history = model.fit(x, y, batch_size=args.batch, epochs=args.epochs, verbose=2)
    print(f"done: loss {history.history['loss'][-1]:.4f}")


if __name__ == "__main__":
    main()
