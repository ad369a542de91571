"""Many runs of memroom.Stream with files, budgets, batches and windows drawn at random: does the
server's peak ever pass its budget?

    MEMROOM_BINARY=bin/memroom PYTHON bench/feed/budget.py [RUNS]

PYTHON is what `testenv/ensure feed` prints.
"""

import io
import os
import random
import sys
import tarfile
import tempfile

import numpy
import pandas
import pyarrow.feather

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))
ROWS, MATRIX, SAMPLES = 60_000, 400_000, 12_000
COUNTS = {"a.npy": MATRIX, "a.tar": SAMPLES, "a.tfrecord": SAMPLES}


def make(folder):
    rng = numpy.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "id": numpy.arange(ROWS),
            "x": rng.normal(size=ROWS),
            "y": rng.normal(size=ROWS).astype("f4"),
            "t": ["text %d " % i * (1 + i % 9) for i in range(ROWS)],
        }
    )
    frame.to_csv(folder + "/a.csv", index=False)
    frame.to_csv(folder + "/a.csv.gz", index=False)
    frame.to_json(folder + "/a.jsonl", orient="records", lines=True)
    frame.to_parquet(folder + "/a.parquet", row_group_size=20_000)
    frame.to_parquet(folder + "/one.parquet")
    pyarrow.feather.write_feather(frame, folder + "/a.arrow")
    numpy.save(folder + "/a.npy", rng.normal(size=(MATRIX, 16)).astype("f4"))
    with open(folder + "/a.txt", "w") as out:
        out.writelines("line %d %s\n" % (i, "word " * (i % 40)) for i in range(ROWS))
    make_tar(folder + "/a.tar", rng)
    make_records(folder + "/a.tfrecord", rng)


def make_tar(path, rng):
    """WebDataset's samples: an image's bytes and a label each."""
    with tarfile.open(path, "w") as out:
        for i in range(SAMPLES):
            for ending, content in (("jpg", rng.bytes(2000 + i % 6000)), ("cls", b"%d" % (i % 10))):
                about = tarfile.TarInfo("%06d.%s" % (i, ending))
                about.size = len(content)
                out.addfile(about, io.BytesIO(content))


def make_records(path, rng):
    import tensorflow

    features = tensorflow.train.Features
    feature = tensorflow.train.Feature
    with tensorflow.io.TFRecordWriter(path) as out:
        for i in range(SAMPLES):
            fields = {
                "id": feature(int64_list=tensorflow.train.Int64List(value=[i])),
                "x": feature(float_list=tensorflow.train.FloatList(value=rng.random(300))),
                "raw": feature(bytes_list=tensorflow.train.BytesList(value=[rng.bytes(900)])),
            }
            example = tensorflow.train.Example(features=features(feature=fields))
            out.write(example.SerializeToString())


def main():
    import memroom

    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    draw = random.Random(1)
    names = ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet", "one.parquet", "a.arrow", "a.npy"]
    names += ["a.txt", "a.tar", "a.tfrecord"]
    above, refused, worst = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder + "/cache"
        make(folder)
        for seed in range(runs):
            name, budget = draw.choice(names), draw.choice([48, 64, 96, 128, 256]) << 20
            sizes = [32, 200] if COUNTS.get(name) == SAMPLES else [32, 500, 1024, 3000]
            stream = memroom.Stream(
                os.path.join(folder, name),
                batch_size=draw.choice(sizes),
                budget=budget,
                shuffle=draw.random() < 0.8,
                seed=seed,
                window=draw.choice(["2MiB", "4MiB", "8MiB"]),
                copy=draw.random() < 0.5,
            )
            try:
                rows = sum(len(next(iter(batch.values()))) for batch in stream)
            except memroom.FeedError as error:
                refused += 1
                print("%s, a budget of %d MiB: refused: %s" % (name, budget >> 20, error))
                continue
            assert rows == COUNTS.get(name, ROWS), (name, rows)
            peak = stream.stats["server"]["peak"]
            worst = max(worst, peak / budget)
            if peak > budget:
                above += 1
                print("%s: %d MiB of a budget of %d" % (name, peak >> 20, budget >> 20))
    print(
        "%d runs, %d above the budget, %d refused, largest %.0f %% of it"
        % (runs, above, refused, 100 * worst)
    )


if __name__ == "__main__":
    main()
