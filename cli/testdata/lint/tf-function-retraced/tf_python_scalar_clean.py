import math

import tensorflow as tf

BATCH = 128
EPOCHS = 30


def cosine(step, total, high=2.0, low=0.5):
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * step / total))


class Student(tf.keras.Model):
    def __init__(self, classes=100):
        super().__init__()
        self.backbone = tf.keras.applications.MobileNetV2(
            include_top=False, weights=None, pooling="avg", input_shape=(96, 96, 3)
        )
        self.fc = tf.keras.layers.Dense(classes)

    def call(self, x, training=False):
        return self.fc(self.backbone(x, training=training))


student = Student()
teacher = tf.keras.models.load_model("teacher.keras")
optimizer = tf.keras.optimizers.Adam(3e-4)
ce = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
kld = tf.keras.losses.KLDivergence()


@tf.function
def train_step(x, y, temperature):
    soft = tf.nn.softmax(teacher(x, training=False) / temperature)
    with tf.GradientTape() as tape:
        logits = student(x, training=True)
        loss = 0.3 * ce(y, logits) + 0.7 * kld(soft, tf.nn.softmax(logits / temperature))
    grads = tape.gradient(loss, student.trainable_variables)
    optimizer.apply_gradients(zip(grads, student.trainable_variables))
    return loss


def dataset():
    (x, y), _ = tf.keras.datasets.cifar100.load_data()
    ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000)
    ds = ds.map(lambda a, b: (tf.image.resize(tf.cast(a, tf.float32) / 255.0, (96, 96)), b))
    return ds.batch(BATCH, drop_remainder=True).prefetch(2)


def main():
    ds = dataset()
    total = EPOCHS * (50_000 // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        mean = tf.keras.metrics.Mean()
        for x, y in ds:
            temperature = cosine(step, total)
            loss = train_step(x, y, tf.constant(temperature, tf.float32))
            mean.update_state(loss)
            step += 1
        print(epoch, float(mean.result()))


if __name__ == "__main__":
    main()
