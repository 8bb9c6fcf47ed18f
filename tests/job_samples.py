"""Jobs for tests of what they take: an attack of config.yaml, and lists of files of a record."""

from gradleak.config import loader
from pipeline_trees import whole

RAW = whole()


def config(scale="laptop", images="embedded"):
    return loader.load({**RAW, "scale": scale, "images": images})


def some_attack(method=None, paper=None):
    """Wildcards of an attack, from config: of a method, or with amounts named in `scales`."""
    for name, entry in RAW["experiments"].items():
        if paper not in (None, entry["paper"]):
            continue
        count = RAW["targets"][entry["targets"]].get("count")
        for attack in entry["attacks"]:
            of = {"model": entry["models"][0], "defence": "none", "attack": attack}
            if method and RAW["attacks"][attack]["method"] == method:
                return {"experiment": name, **of}
            steps = RAW["attacks"][attack].get("iterations")
            if not method and isinstance(count, str) and isinstance(steps, str):
                return {"experiment": name, **of}
    raise AssertionError("config has no such experiment")


def record_of(folder, *rows):
    folder.mkdir(parents=True)
    lines = ["artifact,rule,cpu_seconds,peak_mib,gpu", *rows]
    (folder / "artifacts.csv").write_text("\n".join(lines) + "\n")
    return folder
