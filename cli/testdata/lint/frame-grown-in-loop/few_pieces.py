"""A frame of many files, and one of the four that are written down."""

import glob

import pandas as pd


def of_a_folder(folder):
    table = pd.DataFrame()
    for path in glob.glob(folder + "/*.csv"):
        table = pd.concat([table, pd.read_csv(path)])  # hint: frame-grown-in-loop
    return table


def of_shards(folder):
    table = pd.DataFrame()
    for path in glob.glob(folder + "/*.parquet"):
        table = pd.concat([table, pd.read_parquet(path)])  # expect: frame-grown-in-loop
    return table


def of_splits(folder):
    table = pd.DataFrame()
    for split in ("train", "test"):
        for part_file in ("images.csv", "labels.csv"):
            table = pd.concat([table, pd.read_csv(folder + split + part_file)])
    return table


BASES = ["a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv", "g.csv", "h.csv", "i.csv"]
BASES_MORE = BASES + ["j.csv", "k.csv"]


def of_bases():
    table = pd.DataFrame()
    for file in BASES:
        table = pd.concat((table, pd.read_csv(file)))
    return table
