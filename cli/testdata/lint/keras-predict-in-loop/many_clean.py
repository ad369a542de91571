"""Once for all samples, the model itself, and a network that is not Keras'."""

import numpy as np
from tensorflow import keras


def of_folder(model, paths):
    pictures = [keras.utils.img_to_array(keras.utils.load_img(p)) for p in paths]
    return model.predict(np.stack(pictures), batch_size=64).argmax(-1)


class Agent:
    def __init__(self, env):
        self.env = env
        self.model = keras.Sequential([keras.layers.Dense(24), keras.layers.Dense(2)])

    def episode(self, steps):
        state, _ = self.env.reset()
        for _ in range(steps):
            q = self.model(state[None], training=False)
            state, _, done, _, _ = self.env.step(int(np.argmax(q)))
            if done:
                return


def in_batches(model, batches):
    scores = []
    for x in batches:
        scores.append(model.predict_on_batch(x))
    return np.concatenate(scores)
