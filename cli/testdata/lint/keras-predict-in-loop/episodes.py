"""predict() once a sample: an agent that acts, a folder of pictures, rows of a table."""

import numpy as np
from tensorflow import keras


def act(env, episodes):
    model = keras.Sequential([keras.layers.Dense(24, activation="relu"), keras.layers.Dense(2)])
    for episode in range(500):
        state, _ = env.reset()
        for t in range(200):
            q = model.predict(state[None])  # expect: keras-predict-in-loop
            state, reward, done, _, _ = env.step(int(np.argmax(q)))
            if done:
                print(episode, t)
                break
