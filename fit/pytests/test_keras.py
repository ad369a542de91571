"""Keras: the same weights with accumulation, declined where they would differ."""

import os
import unittest

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow", TF_NUM_INTRAOP_THREADS="1")

import keras
import numpy as np
import tensorflow as tf
from _memroom_probe.fit.remedies import keras_calls, of_keras, tf_data


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
        self.original = keras.Model.fit, keras.layers.Layer.__call__
        self.told = []
        generator = np.random.default_rng(0)
        self.x, self.y = (
            generator.normal(size=(64, 8)).astype("float32"),
            generator.integers(0, 3, 64),
        )

    def tearDown(self):
        keras.Model.fit, keras.layers.Layer.__call__ = self.original

    def assertSame(self, some, others):
        for a, b in zip(some, others):
            self.assertLess(np.abs(a - b).max(), 1e-4 * (1 + np.abs(a).max()))

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
        """Where Keras cannot accumulate, the model's calls are cut: steps by hand, sums, an uneven
        last batch, an optimizer that was used before."""

        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                found = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(found, self.trainable_variables))
                return {"loss": loss}

        def built(kind, reduction):
            inner, inputs = network(), keras.Input((8,))
            model = kind(inputs=inputs, outputs=inner(inputs))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
            model.compile(keras.optimizers.SGD(1e-2), loss)
            return model

        class Distilled(keras.Model):
            """Learns from a teacher, and by a sum."""

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                hard = super().compute_loss(x, y, y_pred, sample_weight)
                soft = teacher(x, training=False)
                return hard + tf.reduce_sum((soft - y_pred) ** 2) / 10

        def centred(inputs, outputs):
            return keras.Model(inputs, Centred()(outputs))

        def mixed(inputs, outputs):
            return keras.Model(inputs, outputs - keras.ops.mean(outputs, axis=0, keepdims=True))

        def active(inputs, outputs):
            kept = keras.layers.ActivityRegularization(l2=0.01)
            return keras.Model(inputs, kept(outputs))

        teacher = network()
        for kind, reduction, rows in (
            (Own, "sum_over_batch_size", 64),
            (keras.Model, "sum", 64),
            (keras.Model, "sum_over_batch_size", 60),
            (Distilled, "sum_over_batch_size", 64),
            (centred, "sum_over_batch_size", 64),
            (mixed, "sum_over_batch_size", 64),
        ):
            self.tearDown()
            whole, pieces = built(kind, reduction), built(kind, reduction)
            before = self.run_fit(whole, rows).history["loss"]
            self.told.clear()
            self.with_pieces()
            after = self.run_fit(pieces, rows).history["loss"]
            self.assertIn("applied", [kind for kind, _ in self.told])
            self.assertIn("computed again", " ".join(text for _, text in self.told))
            self.assertSame(whole.get_weights(), pieces.get_weights())
            self.assertSame(before, after)
        self.tearDown()
        whole, pieces = built(active, "sum_over_batch_size"), built(active, "sum_over_batch_size")
        before = self.run_fit(whole).history["loss"]
        self.told.clear()
        self.with_pieces()
        self.assertSame(before, self.run_fit(pieces).history["loss"])
        self.assertEqual([kind for kind, _ in self.told], ["declined"])

    def test_probabilities_near_0_and_1(self):
        """Keras' losses take the logits behind a softmax or sigmoid, where 1e-7 would be the least
        probability: those of the pieces, too.
        """

        def sure(activation, eager):
            keras.utils.set_random_seed(0)
            start = keras.initializers.RandomNormal(stddev=20)
            units = 3 if activation == "softmax" else 1
            layer = keras.layers.Dense(units, activation, kernel_initializer=start)
            model = keras.Sequential([keras.Input((8,)), layer])
            loss = "sparse_categorical" if activation == "softmax" else "binary"
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
            model.compile(
                keras.optimizers.SGD(rate),
                loss + "_crossentropy",
                run_eagerly=eager,
                jit_compile=False,
            )
            return model

        self.y = self.y % 2
        for activation in ("softmax", "sigmoid"):
            for eager in (False, True):
                self.tearDown()
                whole, pieces = sure(activation, eager), sure(activation, eager)
                before = self.run_fit(whole).history["loss"]
                self.assertGreater(before[0], 16.2)  # more than the least probability could cost
                self.with_pieces()
                after = self.run_fit(pieces).history["loss"]
                self.assertIn("each computed again", self.told[-1][1])
                self.assertSame(before, after)
                self.assertSame(whole.get_weights(), pieces.get_weights())

    def test_schedules(self):
        """A learning rate that follows the steps goes down by batches, not by their pieces."""

        def scheduled():
            model = network()
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
            model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
            return model

        whole, pieces = scheduled(), scheduled()
        before = self.run_fit(whole).history["loss"]
        self.with_pieces()
        after = self.run_fit(pieces).history["loss"]
        self.assertIn("each computed again", self.told[0][1])
        self.assertSame(whole.get_weights(), pieces.get_weights())
        self.assertSame(before, after)

    def test_datasets(self):
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
        self.assertEqual([kind for kind, _ in self.told], ["applied", "applied"])
        self.assertIn("each computed again", self.told[1][1])

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


def mlp(*extra):
    return keras.Sequential(
        [keras.layers.Dense(16, activation="gelu"), *extra, keras.layers.Dense(3)]
    )


def texts():
    layers = [keras.layers.Embedding(20, 8), keras.layers.LSTM(8), keras.layers.Dense(3)]
    return keras.Sequential(layers)


class Pair(keras.Model):
    """Two inputs by name, two outputs in a dictionary, and a tensor without rows."""

    def __init__(self):
        super().__init__()
        self.a, self.b = keras.layers.Dense(3), keras.layers.Dense(3)

    def call(self, inputs, scale=None):
        a, b = self.a(inputs["x"]), self.b(inputs["x"])
        return {"sum": (a + b) * scale, "difference": a - b}


def own(model, x):
    return model(x, training=True)


def pair(model, x):
    found = model({"x": x}, scale=tf.constant([1.0, 2.0, 3.0]))
    return found["sum"] + found["difference"] ** 2


def penalty(model, x):
    """Gradients are differentiated again."""
    with tf.GradientTape() as inner:
        inner.watch(x)
        out = model(x, training=True)
    return out + tf.reduce_sum(inner.gradient(out, x) ** 2)


def pairwise(model, x):
    """A loss over pairs of rows: outputs are whole, so this is the same as well."""
    out = model(x, training=True)
    return out + tf.reduce_mean(tf.matmul(out, out, transpose_b=True), axis=1, keepdims=True)


class Draws(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Seeded(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.numbers = keras.random.SeedGenerator(3)


class Paths(Seeded):
    """Stochastic depth: a sample has one number."""

    def call(self, x, training=None):
        shape = (keras.ops.shape(x)[0], 1)
        return x * keras.ops.floor(0.5 + keras.random.uniform(shape, seed=self.numbers))


class Merged(Seeded):
    """Several rows of what is drawn belong to a sample."""

    def call(self, x):
        parts = keras.ops.reshape(x, (-1, 4))
        parts = parts + keras.random.normal(keras.ops.shape(parts), seed=self.numbers)
        return keras.ops.reshape(parts, keras.ops.shape(x))


class Transposed(Seeded):
    """The samples are the second dimension of what is drawn."""

    def call(self, x):
        drawn = keras.random.normal((x.shape[1], keras.ops.shape(x)[0]), seed=self.numbers)
        return x + keras.ops.transpose(drawn)


class Centred(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0)


class Positions(keras.Model):
    """Adds what is learnt of a token to what is learnt of its place."""

    def __init__(self, tied):
        super().__init__()
        self.tokens, self.out = keras.layers.Embedding(20, 8), keras.layers.Dense(3)
        self.places = self.tokens if tied else keras.layers.Embedding(7, 8)

    def call(self, x):
        x = self.tokens(x) + self.places(keras.ops.arange(7))
        return self.out(keras.ops.mean(x, axis=1))


class Normed(keras.Model):
    """Layers by hand: no graph that could be taken apart."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = keras.layers.Dense(8), keras.layers.BatchNormalization()
        self.drop, self.b = keras.layers.Dropout(0.5), keras.layers.Dense(3)

    def call(self, x, training=None):
        x = tf.nn.leaky_relu(self.norm(self.a(x), training=training))
        return self.b(self.drop(x, training=training))


class Blocks(keras.Model):
    """Blocks that learn from what is around them that this is training."""

    def __init__(self):
        super().__init__()
        self.a, self.b = mlp(keras.layers.BatchNormalization()), mlp(keras.layers.Dropout(0.5))
        self.between = keras.layers.Dense(8)

    def call(self, x):
        return self.b(self.between(self.a(x)))


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x))
        return x


class Loops(unittest.TestCase):
    """Loops of one's own, eager and compiled: the same weights, or the reason."""

    setUp, tearDown, assertSame = Accumulation.setUp, Accumulation.tearDown, Accumulation.assertSame
    with_pieces = Accumulation.with_pieces

    def train(self, make, forward, how, x=None, count=2, rows=None):
        keras.utils.set_random_seed(0)
        model, optimizer = make(), keras.optimizers.Adam(1e-2)

        def step(x, y):
            with tf.GradientTape() as tape:
                out = forward(model, x)
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, out, True))
            found = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(found, model.trainable_variables))
            return loss

        x = tf.constant(self.x if x is None else x)
        if how != "eager":
            signature = None
            if how == "open":
                signature = [
                    tf.TensorSpec([None] + x.shape[1:].as_list(), x.dtype),
                    tf.TensorSpec([None], tf.int64),
                ]
            step = tf.function(step, input_signature=signature, jit_compile=how == "xla")
        rows = rows or [64] * count
        losses = [float(step(x[:n], tf.constant(self.y)[:n])) for n in rows]
        return model.get_weights(), losses

    def test_same_weights(self):
        words = np.random.default_rng(1).integers(0, 20, (64, 7)).astype("int32")
        for make, forward, x in (
            (mlp, own, None),
            (texts, own, words),
            (Pair, pair, None),
            (mlp, penalty, None),
            (mlp, pairwise, None),
        ):
            for how in ("eager", "compiled"):
                self.tearDown()
                want = self.train(make, forward, how, x)
                self.told.clear()
                self.with_pieces()
                got = self.train(make, forward, how, x)
                named = (make.__name__, forward.__name__, how)
                self.assertEqual([kind for kind, _ in self.told], ["applied"], named)
                self.assertSame(want[0], got[0])
                self.assertSame(want[1], got[1])

    def test_rows_that_change(self):
        """An open number of rows, fewer rows than pieces, and XLA."""
        for how, rows in (("open", [64, 33, 2, 1]), ("eager", [64, 33, 2, 1]), ("xla", [64, 48])):
            self.tearDown()
            want = self.train(mlp, own, how, rows=rows)
            self.with_pieces()
            got = self.train(mlp, own, how, rows=rows)
            self.assertSame(want[0], got[0])
            self.assertSame(want[1], got[1])

    def test_random_numbers(self):
        """Each piece draws what the whole batch would: dropout, noise, paths left out."""
        makers = {
            "dropout": lambda: keras.layers.Dropout(0.5),
            "a mask for all steps": lambda: keras.Sequential(
                [
                    keras.layers.Reshape((4, 4)),
                    keras.layers.SpatialDropout1D(0.5),
                    keras.layers.Flatten(),
                ]
            ),
            "noise": lambda: keras.layers.GaussianNoise(0.3),
            "paths": Paths,
            "merged rows": Merged,
        }
        for name, layer in makers.items():
            for how, rows in (("eager", [64, 33, 2, 1]), ("compiled", [64]), ("open", [64, 33, 1])):
                self.tearDown()
                want = self.train(lambda: mlp(layer()), own, how, rows=rows)
                self.told.clear()
                self.with_pieces()
                got = self.train(lambda: mlp(layer()), own, how, rows=rows)
                self.assertEqual({kind for kind, _ in self.told}, {"applied"}, (name, how))
                self.assertSame(want[0], got[0])
                self.assertSame(want[1], got[1])

    def test_other_numbers_are_told(self):
        for layer, want in ((keras.layers.Dropout(0.5), "exact"), (Transposed(), "expected")):
            self.tearDown()
            fields = []
            of_keras.apply(
                keras,
                [{"id": "micro_batch", "params": {"pieces": 4}}],
                lambda kind, text, fields=fields, **f: fields.append(f["equivalence"]),
            )
            self.train(lambda layer=layer: mlp(layer), own, "eager")
            self.assertEqual(fields[0], want, layer)

    def test_computed_again_whole(self):
        """A batch that must stay whole: the graph in parts, the call, or the blocks inside of it.
        Nothing is set twice, and dropout is the same.
        """
        norm, drop = keras.layers.BatchNormalization, keras.layers.Dropout

        def graph():
            x = inputs = keras.Input((8,))
            for n in range(4):
                y = drop(0.3)(norm()(keras.layers.Dense(8, activation="gelu")(x)))
                x = keras.layers.Add()([x, y]) if n else y
            return keras.Model(inputs, keras.layers.Dense(3)(x))

        for make, forward, how, said in (
            (graph, own, "open", "in parts"),
            (lambda: mlp(norm(), drop(0.5)), own, "eager", "in parts"),
            (lambda: mlp(norm()), penalty, "open", "in parts"),
            (lambda: mlp(Centred()), own, "eager", "in parts"),
            (Normed, own, "eager", "as a whole"),
            (Normed, own, "open", "as a whole"),
            (Blocks, own, "eager", "in parts, pieces"),
        ):
            self.tearDown()
            models = []
            want = self.train(self.noted(make, models), forward, how, rows=[64, 48])
            self.told.clear()
            self.with_pieces()
            got = self.train(self.noted(make, models), forward, how, rows=[64, 48])
            told = " ".join(text for kind, text in self.told if kind == "applied")
            for words in said.split(", "):
                self.assertIn(words, told, (make, how))
            self.assertSame(want[0], got[0])
            self.assertSame(want[1], got[1])
            self.assertSame(*([v.numpy() for v in m.non_trainable_variables] for m in models))

    def noted(self, make, models):
        def made():
            models.append(make())
            return models[-1]

        return made

    def test_how_it_is_called_counts(self):
        """A layer that was first called without training is looked at again."""

        def forward(model, x):
            return model(x, training=False) + model(x, training=True)

        def make():
            return mlp(keras.layers.BatchNormalization())

        want = self.train(make, forward, "eager")
        self.with_pieces()
        got = self.train(make, forward, "eager")
        self.assertSame(want[0], got[0])
        self.assertEqual([k for k, _ in self.told], ["applied", "declined", "applied"])

    def test_weights_that_change_before_the_gradients(self):
        """Gradients are those of the weights with which the outputs were computed."""

        def trained():
            model, optimizer = mlp(), keras.optimizers.SGD(0.5)
            with tf.GradientTape(persistent=True) as tape:
                out = model(tf.constant(self.x), training=True)
                losses = [tf.reduce_sum(out**2), tf.reduce_sum(out**3)]
            for loss in losses:
                found = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(found, model.trainable_variables))
            return model.get_weights()

        keras.utils.set_random_seed(0)
        want = trained()
        self.with_pieces()
        keras.utils.set_random_seed(0)
        self.assertSame(want, trained())

    def test_an_argument_that_is_trained(self):
        """It has no row for each sample, and gets its gradient."""

        class Scaled(keras.Model):
            def __init__(self):
                super().__init__()
                self.pair, self.log = Pair(), self.add_weight(shape=(3,), initializer="zeros")

            def call(self, x, training=None):
                return x

        def forward(model, x):
            found = model.pair({"x": x}, scale=tf.exp(model.log))
            return found["sum"] + found["difference"]

        want = self.train(Scaled, forward, "eager")
        self.with_pieces()
        got = self.train(Scaled, forward, "eager")
        self.assertSame(want[0], got[0])
        self.assertIn("is trained", self.told[0][1])

    def test_gradients_of_chosen_rows(self):
        """Adam squares them as they come: those of tokens one by one, those of positions once, by
        calls in pieces and in `fit`. Where both are one matrix the batch stays whole.
        """
        words = np.random.default_rng(1).integers(0, 20, (64, 7)).astype("int32")
        for tied in (False, True):
            for how in ("eager", "open"):
                self.tearDown()
                want = self.train(lambda tied=tied: Positions(tied), own, how, words)
                self.told.clear()
                self.with_pieces()
                got = self.train(lambda tied=tied: Positions(tied), own, how, words)
                self.assertIn("declined" if tied else "applied", self.told[0], how)
                self.assertSame(want[0], got[0])
        losses = []
        for pieces in (False, True):
            self.tearDown()
            if pieces:
                self.with_pieces()
            keras.utils.set_random_seed(0)
            model = texts()
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
            fitted = model.fit(words, self.y, batch_size=16, epochs=3, shuffle=False, verbose=0)
            losses.append(fitted.history["loss"])
        self.assertSame(*losses)

    def test_pieces_of_a_size(self):
        """What is asked for is the rows of a piece."""

        def with_size(rows):
            of_keras.apply(
                keras,
                [{"id": "micro_batch", "params": {"size": rows}}],
                lambda kind, text, **f: self.told.append(text),
            )

        want = self.train(mlp, own, "eager")
        with_size(5)
        got = self.train(mlp, own, "eager")
        self.assertIn("batches of 64 in 16 pieces", self.told[0])
        self.assertSame(want[0], got[0])
        self.tearDown()
        self.told.clear()
        with_size(4)
        network().fit(self.x, self.y, batch_size=16, verbose=0)
        self.assertIn("batches of 16 split into 4", self.told[0])

    def test_accumulation_and_pruning_by_hand(self):
        """Gradients added up over batches, with masks on the weights, while each batch is in
        pieces.
        """

        def trained():
            keras.utils.set_random_seed(0)
            model, optimizer = mlp(keras.layers.Dropout(0.3)), keras.optimizers.Adam(1e-2)
            model.build((None, 8))
            weights = model.trainable_variables
            masks = [tf.cast(tf.abs(w.value) > 0.1, w.dtype) for w in weights]
            sums = [tf.Variable(tf.zeros_like(w.value)) for w in weights]

            @tf.function
            def add(x, y):
                with tf.GradientTape() as tape:
                    out = model(x, training=True)
                    losses = keras.losses.sparse_categorical_crossentropy(y, out, True)
                    loss = tf.reduce_mean(losses) / 4
                for total, gradient in zip(sums, tape.gradient(loss, weights)):
                    total.assign_add(gradient)
                return loss

            for _ in range(2):
                for n in range(4):
                    add(*(tf.constant(t[16 * n : 16 * n + 16]) for t in (self.x, self.y)))
                optimizer.apply_gradients(zip([s.value() for s in sums], weights))
                for total, weight, mask in zip(sums, weights, masks):
                    total.assign(tf.zeros_like(total))
                    weight.assign(weight * mask)
            return model.get_weights()

        want = trained()
        self.with_pieces()
        self.assertSame(want, trained())
        self.assertIn("16 in 4 pieces", self.told[0][1])

    def test_declined(self):
        for layer, words in ((Draws, "tf.random"), (Adds, "add_loss")):
            for how in ("eager", "compiled"):
                self.tearDown()
                want = self.train(lambda: mlp(layer()), own, how)
                self.told.clear()
                self.with_pieces()
                got = self.train(lambda: mlp(layer()), own, how)
                self.assertEqual([kind for kind, _ in self.told], ["declined"], layer)
                self.assertIn(words, self.told[0][1])
                if layer is not Draws:
                    self.assertEqual(
                        [list(w.ravel()) for w in want[0]], [list(w.ravel()) for w in got[0]]
                    )

    def test_networks_of_functions(self):
        """Without a layer there is no call: that is said, once."""
        original = tf.GradientTape.gradient
        keras_calls._met.clear()
        keras_calls.watch_tapes(tf, lambda kind, text, **f: self.told.append((kind, text)))
        try:
            weight = tf.Variable(tf.ones((8, 1)))
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(self.x @ weight)
                tape.gradient(loss, weight)
        finally:
            tf.GradientTape.gradient = original
        self.assertEqual([kind for kind, _ in self.told], ["declined"])
        self.assertIn("written as functions", self.told[0][1])

    def test_sessions(self):
        """What a session runs is not split: that is said, and the numbers stay."""
        session = tf.compat.v1.Session
        original, gradient = session.run, tf.GradientTape.gradient
        base = next(c for c in session.__mro__ if "run" in vars(c))
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("w", (8, 1))
            loss = tf.reduce_sum(tf.constant(self.x) @ weight)
            step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            keras_calls._met.clear()
            keras_calls.watch_tapes(tf, lambda kind, text, **f: self.told.append((kind, text)))
            try:
                with session() as run:
                    run.run(tf.compat.v1.global_variables_initializer())
                    before, _ = run.run([loss, step])
                    self.assertLess(run.run(loss), before)
            finally:
                base.run, tf.GradientTape.gradient = original, gradient
        self.assertEqual([kind for kind, _ in self.told], ["declined"])
        self.assertIn("session of TensorFlow 1", self.told[0][1])


class Pipelines(unittest.TestCase):
    """tf.data works on one element at a time and reads one ahead; the elements stay."""

    def setUp(self):
        self.dataset, self.told = tf.data.Dataset, []
        self.originals = {
            name: getattr(self.dataset, name) for name in ("map", "batch", "prefetch")
        }

    def tearDown(self):
        for name, original in self.originals.items():
            setattr(self.dataset, name, original)

    def elements(self, function, where):
        """What a pipeline hands out, and how many elements it works on or keeps at a time."""
        mapped = self.dataset.range(40).shuffle(40, seed=3)
        mapped = mapped.map(function, *where.get("args", ()), **where.get("kwargs", {}))
        batched = mapped.batch(4, False, 8)
        ahead = batched.prefetch(buffer_size=tf.data.AUTOTUNE)
        numbers = [
            int(n)
            for n in (mapped._num_parallel_calls, batched._num_parallel_calls, ahead._buffer_size)
        ]
        return [list(map(float, rows)) for rows in ahead], numbers

    def with_one(self):
        tf_data.install(tf, lambda kind, text, **f: self.told.append((kind, f["equivalence"])))

    def test_same_elements(self):
        for where in (
            {"args": (8,)},
            {"kwargs": {"num_parallel_calls": tf.data.AUTOTUNE}},
        ):
            self.tearDown()
            want, before = self.elements(lambda n: tf.cast(n, tf.float32) * 2, where)
            self.assertNotIn(1, before)
            self.told.clear()
            self.with_one()
            got, after = self.elements(lambda n: tf.cast(n, tf.float32) * 2, where)
            self.assertEqual(got, want)
            self.assertEqual(after, [1, 1, 1])
            self.assertEqual(self.told, [("applied", "exact")])

    def test_what_draws_is_told(self):
        self.with_one()
        self.elements(lambda n: tf.random.uniform(()), {"args": (8,)})
        self.assertEqual(self.told[0], ("applied", "expected"))

    def test_what_is_one_already_stays(self):
        self.with_one()
        self.assertEqual(
            [int(n) for n in self.dataset.range(3).map(lambda n: n).prefetch(1)], [0, 1, 2]
        )
        self.assertEqual(self.told, [])


if __name__ == "__main__":
    unittest.main()
