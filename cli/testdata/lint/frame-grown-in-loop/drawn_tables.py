"""Curves of a few clients, to be drawn."""

import pathlib

import pandas as pd
import seaborn as sns


def curves(folder):
    rows = pd.DataFrame()
    for path in sorted(pathlib.Path(folder).glob("*.dat")):
        rows = pd.concat([rows, pd.read_csv(path)])  # hint: frame-grown-in-loop
    sns.lineplot(data=rows, x="round", y="accuracy")
