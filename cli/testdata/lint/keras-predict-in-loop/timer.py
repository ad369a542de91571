"""The same picture again and again is a measurement."""

from timeit import default_timer as timer

from tensorflow import keras

model = keras.models.load_model("unet.h5")
picture = keras.utils.load_img("street.png")
times = []
for i in range(1001):
    begun = timer()
    model.predict(picture)  # hint: keras-predict-in-loop
    if i:
        times.append(timer() - begun)
