import tensorflow as tf


def make_step(model, optimizer):
    @tf.function
    def step(x, y, scale):
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(tf.square(model(x) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    return step


def train(model, optimizer, dataset):
    step = make_step(model, optimizer)
    for i, (x, y) in enumerate(dataset):
        step(x, y, 1.0 / (1 + i))  # expect: tf-function-retraced


def train_clean(model, optimizer, dataset):
    step = make_step(model, optimizer)
    for i, (x, y) in enumerate(dataset):
        step(x, y, tf.constant(1.0 / (1 + i)))
