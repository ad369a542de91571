import tensorflow as tf

acc = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
for step, (x, y) in enumerate(ds):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    for a, g in zip(acc, grads):
        a.assign_add(g / 4)
    if (step + 1) % 4 == 0:
        opt.apply_gradients(zip(acc, model.trainable_variables))
        for a in acc:
            a.assign(tf.zeros_like(a))
