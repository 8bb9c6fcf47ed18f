"""results/archive.zip: settings, results and their provenance, as supplementary material.

It is an RO-Crate: `gradleak.reporting.ro_crate` describes it for machines.
Equal contents give equal bytes: names are sorted; times and permissions are fixed.
Figures that may show pictures that must not be redistributed are left out, and listed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gradleak.data import terms
from gradleak.errors import ArtifactError
from gradleak.reporting import ro_crate
from gradleak.runtime.zipped import write_zip

README = """\
# Results of gradleak

Figures, tables and claims of four papers on gradient leakage, replicated by one pipeline.

- Commit: {commit}
- Images: {images}; scale: {scale}; device: {device}
- Made: {made}

| file | holds |
| --- | --- |
| `figures/`, `results/tables/` | figures and tables, the papers' values beside ours |
| `results/claims.csv` | a verdict for every number and sentence of the papers |
| `results/claims_ours.csv` | a verdict for every claim of ours |
| `results/claims_parts.csv` | a verdict for each part of a sentence that has several |
| `results/provenance.json` | what each was made from: files, rules, code, versions, seeds, host |
| `config.yaml`, `papers/`, `examples/` | settings as they were written, and the papers' numbers |
| `config.resolved.json` | settings as they were used |
| `requirements.lock` | exact versions of all libraries, with hashes |
| `Snakefile`, `workflow/` | the rules |
| `manifest.json` | SHA-256 of every file above, and what was left out |
| `ro-crate-metadata.json` | all of this for machines, as an RO-Crate |

## To make it again

Check the commit out, put these settings in their places, and ask for the same file:

```
make setup
.venv/bin/snakemake --config images={images} scale={scale} device={device} -- results/archive.zip
```

Its `docs/` say what comes out the same, bit by bit or nearly so. Times and hosts differ.

## Images

{terms}

## Left out

{left_out}
{warnings}"""


def write(path: str, provenance: str, files: Iterable[str], sources: Mapping[str, str]) -> None:
    """Write the archive to the zip file `path`.

    `files` are results by their paths in the working folder; `sources` maps names in the archive to
    files of the source tree, with those that `ro_crate.metadata` needs. Raises `ArtifactError` if a
    file is missing, cannot be read or lies outside.
    """
    try:
        told = dict(json.loads(_bytes(provenance, provenance)))
    except ValueError as error:
        raise ArtifactError(
            f"{provenance} is damaged ({error}); delete it and ask Snakemake for it again."
        ) from error
    reasons, results = left_out(told), list(files)
    places = {name: name for name in {provenance, *results} - set(reasons)} | dict(sources)
    members = {name: _bytes(name, place) for name, place in places.items()}
    members["config.resolved.json"] = _json(told["config"])
    members["README.md"] = readme(told, reasons).encode()
    manifest = {
        "commit": told["commit"],
        "files": {name: hashlib.sha256(text).hexdigest() for name, text in members.items()},
        "left_out": [{"path": path, "reason": reason} for path, reason in reasons.items()],
    }
    members["manifest.json"] = _json(manifest)
    members[ro_crate.NAME] = _json(ro_crate.metadata(members, told, results))
    write_zip(path, members)


def _bytes(name: str, path: str) -> bytes:
    """Contents of a file whose name stays below the archive's folder when unpacked."""
    member = PurePosixPath(name)
    if member.is_absolute() or ".." in member.parts:
        raise ArtifactError(
            f"{name} lies outside the working folder, so an archive cannot hold it; copy it in."
        )
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        words = f"{path} cannot be read ({reason}); ask Snakemake for it again."
        raise ArtifactError(words) from error


def left_out(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Figures that may show images that must not be redistributed, each with the reason.

    A figure with an incomplete chain is left out unless images are embedded: no target set then
    uses another data set.
    """
    found = {}
    for result in provenance["results"]:
        path, shown = result["path"], result["pictures_of"]
        if not path.endswith((".pdf", ".png")):
            continue
        if shown is None and provenance["images"] != "embedded":
            found[path] = _untold(result)
        if kept := [name for name in shown or () if not terms.of(name).shareable]:
            said = (f"may show images of {name}: {terms.of(name).reason}" for name in kept)
            found[path] = "; ".join(said)
    return found


def _untold(result: Mapping[str, Any]) -> str:
    """Reason why the images that a figure shows are unknown."""
    words = "it cannot be told which images it shows"
    missing = [result["path"]] if result["altered"] is None else result["unrecorded"][:3]
    if not missing:
        return f"{words}: they come from no data set of the catalogue"
    again = "has no sidecar; delete that and ask Snakemake for it again"
    return f"{words}, as {', '.join(missing)} {again}"


def readme(provenance: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Text that tells a reader what the archive contains."""
    used: dict[str, set[str]] = {}
    for entry in provenance["datasets"]:
        mark = " (put there by hand)" if entry["by_hand"] else ""
        used.setdefault(entry["terms"], set()).add(f"{entry['dataset']}{mark}")
    said = sorted(f"- {', '.join(sorted(names))}: {text}" for text, names in used.items())
    commit = provenance["commit"] or "unknown (no git where this was made)"
    altered = sorted(entry["path"] for entry in provenance["results"] if entry["altered"])
    altered += sorted(k for k, v in provenance["artifacts"].items() if v.get("altered"))
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(altered))
    others = ", ".join(sorted(set(provenance["commits"]) - {str(provenance["commit"])}))
    warnings = f"- Changed after the pipeline wrote them: {names}.\n" if names else ""
    warnings += f"- Some files were made at other commits: {others}.\n" if others else ""
    return README.format(
        commit=f"{commit}{', with changes' if provenance['changed'] else ''}",
        terms="\n".join(said) or "None is recorded.",
        left_out="\n".join(f"- `{name}`: {reason}" for name, reason in sorted(reasons.items()))
        or "Nothing.",
        warnings=f"\n## Mind\n\n{warnings}" if warnings else "",
        **{key: provenance[key] for key in ("images", "scale", "device", "made")},
    )


def _json(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode()
