import itertools
import json

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

IMG = (160, 160, 3)


def make_model(width, depth, dropout):
    inputs = keras.Input(IMG)
    x = layers.Rescaling(1 / 255.0)(inputs)
    for i in range(depth):
        x = layers.Conv2D(width * 2**i, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(dropout)(x)
    outputs = layers.Dense(12, activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load(split):
    return keras.utils.image_dataset_from_directory(
        f"/data/mushrooms/{split}", image_size=IMG[:2], batch_size=32, seed=1
    ).prefetch(tf.data.AUTOTUNE)


def search():
    train, val = load("train"), load("val")
    results = []
    grid = itertools.product([32, 64, 96], [3, 4, 5], [0.2, 0.4, 0.5])
    for width, depth, dropout in grid:
        keras.backend.clear_session()
        model = make_model(width, depth, dropout)  # hint: keras-loop-in-one-process
        hist = model.fit(train, validation_data=val, epochs=15, verbose=2)
        acc = float(np.max(hist.history["val_accuracy"]))
        results.append({"params": (width, depth, dropout), "acc": acc})
        model.save(f"trial_{width}_{depth}_{dropout}.keras")
        del model
        print(width, depth, dropout, acc)
    return results


def main():
    results = search()
    best = max(results, key=lambda r: r["acc"])
    print("best", best["params"], best["acc"])
    with open("grid.json", "w") as f:
        json.dump([{"params": r["params"], "acc": r["acc"]} for r in results], f)


if __name__ == "__main__":
    main()
