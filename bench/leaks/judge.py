"""Prints what a run of loop.py was told: usage judge.py SCRIPT KIND RUN_FOLDER"""

import json
import os
import re
import sys

script, kind, folder = sys.argv[1:]
onset = {"late": 60, "evaluation_kept": 7}.get(kind, 1)
lines = {word: [] for word in ("makes", "keeps", "calls")}
with open(script) as f:
    for number, text in enumerate(f, 1):
        for word in lines:
            if re.search(r"#.*\b%s (\w+ )*?%s\b" % (word, kind), text):
                lines[word].append(number)
with open(os.path.join(folder, "summary.json")) as f:
    found = [
        f
        for f in json.load(f).get("findings") or []
        if f["kind"] not in ("neighbour", "host_pressure", "swap")
    ]  # of the machine, not of the loop
said = [f for f in found if f["kind"] == "leak"]
others = sorted({f["kind"] for f in found if f["kind"] != "leak"})
if kind.startswith("healthy"):
    print(
        "%-22s %s"
        % (kind, "silent" if not found else "ACCUSED: " + "; ".join(f["title"] for f in found))
    )
    sys.exit()
if not said:
    print("%-22s NOT FOUND %s" % (kind, others))
    sys.exit()
first = min(said, key=lambda f: f["step"])  # one that was said again with its line comes last
frames = [
    f["line"] for f in first.get("frames") or [] if f["file"].endswith(os.path.basename(script))
]
line = frames and "%d from %d" % (frames[0], frames[-1]) or None
title = first["title"]
# The line that allocated what stays, innermost in the program, and the line of its loop that led
# there.
right = (
    frames[0] in lines["makes"] + lines["keeps"] and frames[-1] in sum(lines.values(), [])
    if frames
    else None
)
print(
    "%-22s after %3d steps; line %s (%s); %s; also %s"
    % (
        kind,
        first["step"] - onset,
        line,
        {True: "right", False: "want %s" % lines, None: "none"}[right],
        title[:230],
        others,
    )
)
