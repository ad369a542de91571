"""A tape records everything inside it: one batch, or all of them."""

import tensorflow as tf


def epoch(model, opt, loss_fn, dataset):
    with tf.GradientTape(persistent=True) as tape:  # expect: tape-around-loop
        for x, y in dataset:
            loss = loss_fn(y, model(x, training=True))
            opt.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            )


def numbered(model, opt, loss_fn, data):
    with tf.GradientTape(persistent=True) as t:  # expect: tape-around-loop
        for step, (x, y) in enumerate(data):
            loss = loss_fn(y, model(x))
            grads = t.gradient(loss, model.trainable_weights)
            opt.apply_gradients(zip(grads, model.trainable_weights))
            print(step, float(loss))


def two_losses(model, opt, loss_fn, data):
    for x, y in data:
        with tf.GradientTape(persistent=True) as tape:
            first, second = loss_fn(y, model(x)), loss_fn(y, model(-x))
        for loss in (first, second):
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))
        del tape


def layers(model, opt, loss_fn, data):
    for x, y in data:
        with tf.GradientTape() as tape:
            h = x
            for layer in model.layers:
                h = layer(h)
            loss = loss_fn(y, h)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
