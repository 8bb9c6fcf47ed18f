# The notebooks that are there, and what they run.
NOTEBOOK_FOLDER = beside_snakefile("notebooks")
NOTEBOOKS = sorted(path.stem for path in Path(NOTEBOOK_FOLDER).glob("*.ipynb"))
# What the package's own names bring, which no import statement tells.
BY_NAME = {"gradleak.audit": ("gradleak.auditing.api", *METHODS)}


def notebook_file(wildcards):
    """The stored notebook."""
    return str(Path(NOTEBOOK_FOLDER) / f"{wildcards.notebook}.ipynb")


def notebook_images(wildcards):
    """Files that its text shows, which become part of the page."""
    from gradleak.notebooks import source

    return source.images(notebook_file(wildcards))


def notebook_code(wildcards):
    """Hash of the code that a notebook runs, and of what runs it and writes its page."""
    # Imported here, as every job would pay the time that it takes.
    from gradleak.notebooks import source

    imported = source.modules(notebook_file(wildcards), BY_NAME)
    return code("gradleak.notebooks.execute", "gradleak.notebooks.page", *imported)
