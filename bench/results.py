"""results.py owns the reading of the benchmark's JSON: entries by tier, with their fields."""

import json
import re


def load(path):
    """Returns (context, entries); an entry has its counters and the fields of its name."""
    with open(path) as f:
        data = json.load(f)
    return data["context"], [parse(b) for b in data["benchmarks"]]


def parse(entry):
    entry["case"] = re.sub(r"/(manual_time|min_time:[0-9.]+)", "", entry["name"])
    parts = entry["case"].split("/")
    entry["kind"] = parts[0]
    fields = dict(p.split(":", 1) for p in parts if ":" in p)
    entry["fields"] = {k: int(v) if re.fullmatch(r"\d+", v) else v for k, v in fields.items()}
    entry["words"] = [p for p in parts[1:] if ":" not in p]
    return entry


def versus_peers(entry):
    """Whether the plain loop, and on vector tiers the composite, took part in an entry."""
    return entry["kind"] == "sdpa" and "naive_ratio" in entry


def dense(entry):
    """Whether it belongs to the square series over T that the plots draw."""
    f = entry["fields"]
    return versus_peers(entry) and f["d"] in (64, 128) and "dv" not in f
