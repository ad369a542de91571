import tensorflow as tf

total = None
for step, (x, y) in enumerate(ds):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True)) / 4
    grads = tape.gradient(loss, model.trainable_variables)
    total = grads if total is None else [a + g for a, g in zip(total, grads)]  # expect: accumulator-never-reset
    if step % 4 == 3:
        opt.apply_gradients(zip(total, model.trainable_variables))
