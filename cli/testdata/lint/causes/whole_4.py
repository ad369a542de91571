import os, cv2, numpy as np
from tensorflow import keras


def load(folder):
    data, ys = [], []
    for name in os.listdir(folder):
        img = cv2.imread(os.path.join(folder, name))
        data.append(img)  # expect: dataset-read-whole
        ys.append(int(name[0]))
    return np.array(data), np.array(ys)


x_train, y_train = load("train")
model = keras.Sequential([keras.layers.Conv2D(8, 3)])
model.compile("adam", "mse")
model.fit(x_train / 255.0, y_train)
