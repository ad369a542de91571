"""Accumulation that forgets, overshoots or runs ahead."""
import torch
import tensorflow as tf


def forgets(model, optimizer, scheduler, loader, loss_fn, every=4):
    for i, (inputs, labels) in enumerate(loader):
        model.zero_grad()  # expect: zero-grad-each-micro-step
        loss = loss_fn(model(inputs), labels)
        loss.backward()  # expect: accumulation-unscaled
        scheduler.step()  # expect: scheduler-each-micro-step
        if (i + 1) % every == 0:  # hint: last-window-dropped
            optimizer.step()


def keras_forgets(model, optimizer, dataset, every=4):
    for step, batch in enumerate(dataset):
        with tf.GradientTape() as tape:
            loss = model(batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        kept = [tf.zeros_like(g) for g in gradients]  # expect: accumulator-recreated
        kept = [a + g for a, g in zip(kept, gradients)]
        if step % every == 0:
            optimizer.apply_gradients(zip(kept, model.trainable_variables))
            kept = [tf.zeros_like(g) for g in gradients]


def keras_keeps(model, optimizer, dataset, every=4):
    kept = [tf.zeros_like(v) for v in model.trainable_variables]
    for step, batch in enumerate(dataset):
        with tf.GradientTape() as tape:
            loss = model(batch) / every
        gradients = tape.gradient(loss, model.trainable_variables)
        kept = [a + g for a, g in zip(kept, gradients)]
        if (step + 1) % every == 0:
            optimizer.apply_gradients(zip(kept, model.trainable_variables))
            kept = [tf.zeros_like(g) for g in gradients]
