import cv2, glob, numpy as np
import tensorflow as tf


class Pictures(tf.keras.utils.Sequence):
    def __init__(self, folder, bs):
        self.files = sorted(glob.glob(folder + "/*.jpg"))
        self.data = np.array([cv2.imread(f) for f in self.files])  # expect: dataset-read-whole
        self.bs = bs

    def __len__(self):
        return len(self.data) // self.bs

    def __getitem__(self, i):
        return self.data[i * self.bs : (i + 1) * self.bs] / 255.0


m = tf.keras.Sequential([tf.keras.layers.Conv2D(8, 3)])
m.compile("adam", "mse")
m.fit(Pictures("train", 16))
