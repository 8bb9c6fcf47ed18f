# Where the rules are: in the folder of this file, but for a module on GitHub or GitLab. Of that
# Snakemake fetches single files, and not the packages that rules and scripts import.
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory


def rules_folder(here):
    """`here`, or for a file that is not on this machine its folder in a clone, which Snakemake's cache
    keeps."""
    if here.is_local:
        return str(here)
    import git

    known = here.hosted_repo
    commit = known.repo.commit(here.ref).hexsha
    place = Path(f"{known.repo_clone}-{commit}")
    if not place.exists():
        with TemporaryDirectory(dir=place.parent) as folder:
            git.Repo.clone_from(known.repo.git_dir, f"{folder}/tree").git.checkout(commit)
            with suppress(OSError):  # another run has just made it
                os.rename(f"{folder}/tree", place)
    return f"{place}/workflow/rules"


RULES = rules_folder(workflow.current_basedir)
