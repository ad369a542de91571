"""Small tables are merged and written; nobody trains on them here."""

import os

import pandas as pd


def merge(folder, goal):
    rows = pd.DataFrame(columns=["question", "answer"])
    for name in os.listdir(folder):
        if name.endswith(".csv"):
            part = pd.read_csv(os.path.join(folder, name))
            rows = pd.concat([rows, part], ignore_index=True)  # hint: frame-grown-in-loop
    rows.to_csv(goal)


def merge_large(folder, goal):
    rows = pd.DataFrame()
    for name in sorted(os.listdir(folder)):
        part = pd.read_parquet(os.path.join(folder, name))
        rows = pd.concat([rows, part], ignore_index=True)  # expect: frame-grown-in-loop
    rows.to_parquet(goal)
