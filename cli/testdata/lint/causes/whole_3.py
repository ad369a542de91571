import glob, numpy as np
from PIL import Image
import tensorflow as tf

images = np.array([np.array(Image.open(p).resize((224, 224))) for p in glob.glob("data/*.jpg")])  # expect: dataset-read-whole
labels = np.zeros(len(images))
model = tf.keras.applications.ResNet50(weights=None)
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(images, labels, epochs=5)
