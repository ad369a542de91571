import tensorflow as tf


def train(model, opt, loss_fn, data):
    step_losses = []
    for i, (x, y) in enumerate(data):

        @tf.function
        def step(a, b):  # expect: tf-function-retraced
            with tf.GradientTape() as tape:
                loss = loss_fn(b, model(a))
            opt.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            )
            return loss

        step_losses.append(float(step(x, y)))
