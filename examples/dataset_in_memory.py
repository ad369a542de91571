"""A dataset loaded whole: every row of a CSV file becomes a list of Python floats, many times the
size of the file.

With --stream the same rows are read in batches, and memory stays flat however long the file is.

"""

import argparse
import csv
import os
import random
import tempfile

import torch

COLUMNS = 16


def write_data(path, rows):
    rng = random.Random(0)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        for _ in range(rows):
            writer.writerow([f"{rng.random():.6f}" for _ in range(COLUMNS)])


def read_rows(path):
    with open(path, newline="") as file:
        for row in csv.reader(file):
            yield [float(value) for value in row]


def batches(rows, size):
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield torch.tensor(batch)
            batch = []
    if batch:
        yield torch.tensor(batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--stream", action="store_true", help="do it right")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Linear(COLUMNS - 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data.csv")
        write_data(path, args.rows)
        rows = (
            read_rows(path) if args.stream else list(read_rows(path))
        )  # the list is what does not fit
        loss = None
        for batch in batches(rows, args.batch):
            loss = torch.nn.functional.mse_loss(model(batch[:, :-1]), batch[:, -1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"done: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
