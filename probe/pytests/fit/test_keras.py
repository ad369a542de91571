"""Keras: the same weights with accumulation, declined where they would differ."""

import os
import unittest

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow", TF_NUM_INTRAOP_THREADS="1")

import keras
import numpy as np
from _memroom_probe.fit.remedies import of_keras


def network(normalised=False):
    keras.utils.set_random_seed(0)
    layers = (
        [keras.layers.Dense(16, activation="gelu")]
        + [keras.layers.BatchNormalization()] * normalised
        + [keras.layers.Dense(3)]
    )
    model = keras.Sequential([keras.Input((8,))] + layers)
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


class Accumulation(unittest.TestCase):
    def setUp(self):
        self.original = keras.Model.fit
        self.told = []
        generator = np.random.default_rng(0)
        self.x, self.y = (
            generator.normal(size=(64, 8)).astype("float32"),
            generator.integers(0, 3, 64),
        )

    def tearDown(self):
        keras.Model.fit = self.original

    def run_fit(self, model, rows=64, **more):
        return model.fit(
            self.x[:rows], self.y[:rows], batch_size=16, epochs=2, shuffle=False, verbose=0, **more
        )

    def with_pieces(self):
        of_keras.apply(
            keras,
            [{"id": "micro_batch", "params": {"pieces": 3}}],
            lambda kind, text, **f: self.told.append((kind, text)),
        )

    def test_same_weights(self):
        whole, pieces = network(), network()
        before = self.run_fit(whole).history["loss"]
        self.with_pieces()
        after = self.run_fit(pieces).history["loss"]
        self.assertEqual(
            self.told,
            [
                (
                    "applied",
                    "%s: batches of 16 split into 4 micro-batches, accumulated by Keras"
                    % pieces.name,
                )
            ],
        )
        for a, b in zip(whole.get_weights(), pieces.get_weights()):
            self.assertLess(np.abs(a - b).max(), 1e-4)
        for a, b in zip(before, after):
            self.assertLess(abs(a - b) / a, 1e-4)

    def test_datasets(self):
        import tensorflow as tf

        def dataset(**more):
            return tf.data.Dataset.from_tensor_slices((self.x[:60], self.y[:60])).batch(16, **more)

        whole, pieces = network(), network()
        before = whole.fit(
            dataset(drop_remainder=True).repeat(), epochs=2, steps_per_epoch=3, verbose=0
        ).history["loss"]
        self.with_pieces()
        after = pieces.fit(
            dataset(drop_remainder=True).repeat(), epochs=2, steps_per_epoch=3, verbose=0
        ).history["loss"]
        for a, b in zip(whole.get_weights(), pieces.get_weights()):
            self.assertLess(np.abs(a - b).max(), 1e-4)
        for a, b in zip(before, after):
            self.assertLess(abs(a - b) / a, 1e-4)
        network().fit(dataset(), verbose=0)
        self.assertEqual([kind for kind, _ in self.told], ["applied", "declined"])
        self.assertIn("drop_remainder=True", self.told[1][1])

    def test_declined(self):
        self.with_pieces()
        self.run_fit(network(normalised=True))
        self.run_fit(network(), rows=60)
        reasons = [text for kind, text in self.told if kind == "declined"]
        self.assertEqual(len(reasons), 2)
        self.assertIn("BatchNormalization", reasons[0])
        self.assertIn("last batch", reasons[1])

    def test_op_by_op(self):
        """After an attempt that ran out, XLA is left out as well; weights are the same."""
        whole, apart = network(), network()
        for model in (whole, apart):
            model.jit_compile = True
        self.run_fit(whole)
        of_keras.apply(
            keras,
            [{"id": "micro_batch", "params": {"failed": True, "factor": 0.75}}],
            lambda kind, text, **f: self.told.append((kind, text)),
        )
        self.run_fit(apart)
        self.assertFalse(apart.jit_compile)
        self.assertEqual([kind for kind, _ in self.told], ["applied", "applied"])
        self.assertIn("jit_compile=False", " ".join(text for _, text in self.told))
        for a, b in zip(whole.get_weights(), apart.get_weights()):
            self.assertLess(np.abs(a - b).max(), 1e-4)
        plain = network()
        plain.jit_compile = False
        self.run_fit(plain)
        self.assertEqual(len(self.told), 3)  # pieces alone


if __name__ == "__main__":
    unittest.main()
