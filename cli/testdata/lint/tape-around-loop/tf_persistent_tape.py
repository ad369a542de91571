import tensorflow as tf


def train(model, opt, loss_fn, data):
    with tf.GradientTape(persistent=True) as tape:  # expect: tape-around-loop
        for x, y in data:
            loss = loss_fn(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))
