"""What stands in the other branch has not happened: the names of folders are shuffled, not what is
read from them.
"""

import tensorflow as tf


def read(folder):
    return tf.io.decode_jpeg(tf.io.read_file(folder + "/first.jpg"))


def folders_shuffled(folders, seed):
    data = tf.data.Dataset.from_tensor_slices(list(folders))
    if seed is not None:
        data = data.shuffle(buffer_size=len(folders), seed=seed)
        data = data.map(read, num_parallel_calls=1)
    else:
        data = data.shuffle(buffer_size=len(folders))
        data = data.map(read)
    return data.batch(8)


def one_or_the_other(folders, cached):
    names = tf.data.Dataset.from_tensor_slices(folders)
    if cached:
        names = names.map(read)
    else:
        names = names.shuffle(buffer_size=len(folders))
    return names


def pictures_shuffled(folders):
    data = tf.data.Dataset.from_tensor_slices(folders)
    data = data.map(read)
    data = data.shuffle(buffer_size=len(folders))  # expect: tf-data-buffers
    return data.batch(8)
