# %% [markdown]
# Click-through model: read the daily logs, build features, train LightGBM

# %%
import gc
import glob

import lightgbm as lgb
import numpy as np
import pandas as pd

USE = ["user", "item", "hour", "device", "price", "position", "label"]


# %%
def read_day(path):
    day = pd.read_csv(
        path, usecols=USE, dtype={"device": "category", "price": np.float32, "position": np.int16}
    )
    day["hour"] = pd.to_datetime(day["hour"]).dt.hour.astype(np.int8)
    day["label"] = day["label"].astype(np.int8)
    return day


# %%
paths = sorted(glob.glob("logs/2024-*.csv.gz"))
print(len(paths), "days")

frame = pd.DataFrame(columns=USE)
for path in paths:
    day = read_day(path)
    frame = pd.concat([frame, day], ignore_index=True)  # hint: frame-grown-in-loop
    print(path, len(frame))

# %%
# counts by user and item
for key in ("user", "item"):
    counts = frame.groupby(key)["label"].agg(["mean", "size"]).astype(np.float32)
    frame[f"{key}_ctr"] = frame[key].map(counts["mean"]).astype(np.float32)
    frame[f"{key}_n"] = frame[key].map(counts["size"]).astype(np.float32)
    del counts
gc.collect()

# %%
features = ["hour", "price", "position", "user_ctr", "user_n", "item_ctr", "item_n"]
cut = int(len(frame) * 0.9)
train = lgb.Dataset(frame[features].iloc[:cut], frame["label"].iloc[:cut], free_raw_data=True)
valid = lgb.Dataset(
    frame[features].iloc[cut:], frame["label"].iloc[cut:], reference=train, free_raw_data=True
)

# %%
params = {"objective": "binary", "metric": "auc", "learning_rate": 0.05, "num_leaves": 127}
booster = lgb.train(
    params,
    train,
    2000,
    valid_sets=[valid],
    callbacks=[lgb.early_stopping(50), lgb.log_evaluation(50)],
)
booster.save_model("ctr.txt")
