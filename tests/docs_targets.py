"""What a Snakefile can make: asked by tests/test_docs_commands.py in a process of its own.

Reads {"SCALE IMAGES": [targets]} from standard input and writes, for each, the targets that no
rule makes, and the patterns of all outputs.
"""

import json
import re
import sys
from pathlib import Path

from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings


def asked(scale, images, targets):
    quiet = OutputSettings(quiet={Quietness.ALL})
    with SnakemakeApi(quiet) as api:
        flow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config={"scale": scale, "images": images}),
            snakefile=Path("Snakefile"),
        )._workflow
        names = {rule.name for rule in flow.rules}
        outputs = [output for rule in flow.rules for output in rule.output]
        unmade = [t for t in targets if t not in names and not any(o.match(t) for o in outputs)]
        patterns = {re.sub(r"\{(\w+),(?:[^{}]|\{[^{}]*\})*\}", r"{\1}", str(o)) for o in outputs}
    return {"unmade": unmade, "patterns": sorted(patterns)}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = {case: asked(*case.split(), targets) for case, targets in given.items()}
    json.dump(found, sys.stdout)
