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

    def test_steps_and_losses_of_their_own(self):
        """A step by hand may do things once a batch; sums are not averages."""

        class Averaged(keras.Model):
            """Keeps a moving average of its weights, moved on in every step."""

            def train_step(self, data):
                self.moved = getattr(self, "moved", 0) + 1
                return super().train_step(data)

        class Plain(keras.Model):
            """A class of somebody's own, with Keras' own step."""

        inner = network()
        for kind, applied in ((Averaged, False), (Plain, True)):
            inputs = keras.Input((8,))
            model = kind(inputs=inputs, outputs=inner(inputs))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(1e-2), loss)
            self.told.clear()
            self.with_pieces()
            self.run_fit(model)
            keras.Model.fit = self.original
            said = [(k, "written by hand" in text) for k, text in self.told]
            self.assertEqual(said, [("applied", False)] if applied else [("declined", True)], kind)
        model = network()
        model.compile(
            keras.optimizers.SGD(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        )
        self.told.clear()
        self.with_pieces()
        self.run_fit(model)
        self.assertEqual([kind for kind, _ in self.told], ["declined"])
        self.assertIn("sum over the batch", self.told[0][1])

    def test_other_masks_are_told(self):
        for rate, want in ((0.0, "exact"), (0.5, "expected")):
            keras.utils.set_random_seed(0)
            layers = [keras.layers.Dense(16), keras.layers.Dropout(rate), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((8,))] + layers)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(1e-2), loss)
            fields = []
            of_keras.apply(
                keras,
                [{"id": "micro_batch", "params": {"pieces": 4}}],
                lambda kind, text, fields=fields, **f: fields.append(f["equivalence"]),
            )
            self.run_fit(model)
            keras.Model.fit = self.original
            self.assertEqual(fields, [want], rate)

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
