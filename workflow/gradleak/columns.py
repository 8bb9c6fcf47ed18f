"""Columns of the tidy tables, the same everywhere, so that one reader serves all."""

# Keys of a run; together with `metric` they identify one value.
RUN = [
    "paper",
    "result",
    "attack",
    "model",
    "defence",
    "images",
    "targets",
    "seed",
    "batch",
    "index",
]
SCORES = [*RUN, "label", "metric", "value", "status", "reason"]
TABLES = [
    "row",
    "column",
    "metric",
    "paper",
    "ours",
    "low",
    "high",
    "n",
    "n_ok",
    "images",
    "scale",
    "verdict",
    "note",
]
