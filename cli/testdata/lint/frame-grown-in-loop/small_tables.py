"""Boxes and labels are small tables; recordings are not."""

import os

import pandas as pd


def boxes(folder):
    bbox_df = pd.DataFrame()
    for name in os.listdir(folder):
        df = pd.read_csv(os.path.join(folder, name, "bbox.csv"))
        bbox_df = bbox_df.append(df)  # hint: frame-grown-in-loop
    return bbox_df


def recordings(folder):
    signal = pd.DataFrame()
    for name in os.listdir(folder):
        signal = pd.concat(  # expect: frame-grown-in-loop
            [signal, pd.read_parquet(os.path.join(folder, name))]
        )
    return signal
