"""ro-crate-metadata.json: what an archive of results holds and how it was made, for machines.

It follows RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) and its profiles Workflow RO-Crate 1.0 and
Workflow Run Crate 0.5: the workflow is the main entity, and one action leads to all results.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import yaml

from gradleak.errors import ArtifactError

NAME = "ro-crate-metadata.json"
WORKFLOW, CITATION, LICENCE = "workflow/Snakefile", "CITATION.cff", "LICENSE"
CRATE = "https://w3id.org/ro/crate/1.1"
# RO-Crate 1.1 has no term for a checksum; this is the one of Workflow Run Crate.
CONTEXT = [f"{CRATE}/context", {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}]
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    f"{WORKFLOW_CRATE}/1.0": "Workflow RO-Crate",
}
SNAKEMAKE = {
    "@id": f"{WORKFLOW_CRATE}#snakemake",
    "@type": "ComputerLanguage",
    "name": "Snakemake",
    "identifier": {"@id": "https://doi.org/10.1093/bioinformatics/bts480"},
    "url": {"@id": "https://snakemake.readthedocs.io"},
}
# By suffix, not from the machine's own table, so that the bytes are the same everywhere.
MEDIA = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".yaml": "application/yaml",
}

Entity = dict[str, Any]


def metadata(
    members: Mapping[str, bytes], provenance: Mapping[str, Any], results: Iterable[str]
) -> dict[str, Any]:
    """Build the JSON-LD that describes an archive.

    Parameters
    ----------
    members : files of the archive by name, among them `WORKFLOW`, `CITATION` and `LICENCE`
    provenance : contents of results/provenance.json
    results : names of the members that the run made

    Raises
    ------
    ArtifactError
        If the workflow, its authors or its licence are not among the members.
    """
    if lacking := [name for name in (WORKFLOW, CITATION, LICENCE) if name not in members]:
        raise ArtifactError(f"an archive needs {', '.join(lacking)}; restore it in the source.")
    cited = yaml.safe_load(members[CITATION])
    files = {name: _file(name, content) for name, content in sorted(members.items())}
    authors = [_author(number, entry) for number, entry in enumerate(cited["authors"], 1)]
    about = {"author": _references(authors), "license": {"@id": LICENCE}}
    files[LICENCE] |= {"@type": ["File", "CreativeWork"], "identifier": cited["license"]}
    files[WORKFLOW] |= about | {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": cited["title"],
        "version": provenance["commit"] or cited["version"],
        "programmingLanguage": {"@id": SNAKEMAKE["@id"]},
    }
    made = sorted(set(results) & files.keys())
    action = _run(provenance) | {"result": [{"@id": name} for name in made]}
    root = about | {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Results of {cited['title']}",
        "description": "Figures, tables, claims, settings and provenance. README.md gives the "
        "terms of the images that figures show; manifest.json lists what was left out.",
        "datePublished": provenance["made"][:10],
        "conformsTo": [{"@id": profile} for profile in PROFILES],
        "mainEntity": {"@id": WORKFLOW},
        "mentions": {"@id": action["@id"]},
        "hasPart": _references(files.values()),
    }
    descriptor = {
        "@id": NAME,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": [{"@id": CRATE}, {"@id": f"{WORKFLOW_CRATE}/1.0"}],
    }
    profiles = [
        {"@id": key, "@type": "CreativeWork", "name": name, "version": key.rpartition("/")[2]}
        for key, name in PROFILES.items()
    ]
    graph = [descriptor, root, *files.values(), action, SNAKEMAKE, *authors, *profiles]
    return {"@context": CONTEXT, "@graph": graph}


def _file(name: str, content: bytes) -> Entity:
    """Entity of a member."""
    entity = {
        "@id": name,
        "@type": "File",
        "name": name,
        "contentSize": str(len(content)),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    media = MEDIA.get(PurePosixPath(name).suffix)
    return {**entity, "encodingFormat": media} if media else entity


def _author(number: int, entry: Mapping[str, str]) -> Entity:
    """Entity of an author of CITATION.cff, where an organisation has a name in one piece."""
    identifier = entry.get("orcid", f"#author-{number}")
    if "name" in entry:
        return {"@id": identifier, "@type": "Organization", "name": entry["name"]}
    given, family = entry["given-names"], entry["family-names"]
    return {"@id": identifier, "@type": "Person", "name": f"{given} {family}"}


def _references(entities: Iterable[Entity]) -> list[Entity]:
    return [{"@id": entity["@id"]} for entity in entities]


def _run(provenance: Mapping[str, Any]) -> Entity:
    """Action from the start of the first job to the end of the last, of those with a record."""
    jobs = [entry for entry in provenance["artifacts"].values() if entry["recorded"]]
    ends = [datetime.fromisoformat(entry["ended"]) for entry in jobs]
    starts = [
        end - timedelta(seconds=entry["seconds"]) for end, entry in zip(ends, jobs, strict=True)
    ]
    times = {"startTime": min(starts), "endTime": max(ends)} if jobs else {}
    return {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"Run with images {provenance['images']} at scale {provenance['scale']}",
        "instrument": {"@id": WORKFLOW},
        "object": [{"@id": "config.resolved.json"}],
        **{key: time.isoformat(timespec="seconds") for key, time in times.items()},
    }
