"""Schema of papers/{paper}/results.yaml, which lists a paper's figures and tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from gradleak.config import yaml_checks
from gradleak.errors import ConfigError
from gradleak.runtime.provenance import module_path
from gradleak.settings.fields import ByScale, DatasetName, Identifier, Identifiers, Section
from gradleak.settings.validation_messages import sentence

NAME = "results.yaml"
# Optional lists and mappings.
Ids = Annotated[list[Identifier], Field(default_factory=list)]
Words = Annotated[dict[str, Any], Field(default_factory=dict)]
Lines = Annotated[list[dict[str, Any]], Field(default_factory=list)]


class Loop(Section):
    """Parts of a figure: one, or one for each combination of loops.

    Loops run over rows and columns that do not show originals and over `foreach`, except for
    combinations that match `skip`: names with a value, or a list of values, each. `{name}` is
    replaced by its value. Additional keys are passed to the figure.
    """

    model_config = ConfigDict(extra="allow")

    foreach: Annotated[dict[str, list[Any]], Field(default_factory=dict)]
    skip: Lines
    model: str

    @property
    def more(self) -> dict[str, Any]:
        """Additional keys, read by the figure."""
        return dict(self.model_extra or {})


class Panel(Loop):
    """An attack on a network."""

    experiment: str
    attack: str | list[str]  # of a list the first that the experiment has
    defence: str = "none"
    title: str = ""


class Curve(Loop):
    """A training of a network."""

    training: str


class Compared(Section):
    """Servers whose weights for a model are compared with its initial weights."""

    servers: Identifiers
    targets: Identifier  # images for single-image gradients


class Entry(Section):
    """A figure or table.

    Experiments, targets and models are ids of config; tables are other results of this file.
    """

    title: str = Field(min_length=1)
    caption: str = Field(min_length=1)  # reStructuredText: what to see
    time: str = ""  # at laptop scale on 2 cores, if known
    enabled: bool = True
    make: str  # module of the package whose `make` draws or computes it
    # Function of papers/{paper}/inputs.py for inputs that the keys below cannot express.
    inputs: Identifier | None = None
    evidence: Literal["table", "index"] | None = None  # whether and how claims read it

    heading: str | None = None  # title inside the figure
    note: str | list[str] | None = None  # sentences below the figure
    words: Words  # further settings for the module

    experiment: Identifier | None = None  # source of originals, reconstructions and scores
    models: list[str] | None = None  # of experiments, by patterns such as cnn3_v*_tanh; default all
    attacks: dict[Identifier, str] | Identifiers | None = None  # with headings; default all
    unseen: Ids  # attacks not shown, whose scores the axes include
    names: dict[Identifier, str] | None = None  # networks shown, with labels
    scores: Ids
    points: Ids  # further scores
    security: Ids
    rank: Ids
    trained: Ids  # summaries of the trainings used by experiments
    experiments: Ids  # for modules that read more than scores
    targets: Identifier | None = None
    initial: Ids  # models with their initial weights
    dataset: DatasetName | None = None
    split: str = "test"
    table: Identifier | None = None
    tables: Ids
    compared: Annotated[dict[Identifier, Compared], Field(default_factory=dict)]
    samples: ByScale | None = None  # gradients that a client samples, or draws of a random key
    rows: Lines
    columns: Lines
    panels: Annotated[list[Panel], Field(default_factory=list)]
    curves: Annotated[list[Curve], Field(default_factory=list)]

    @staticmethod
    def inputs_module(name: str) -> str:
        """Module with the function `inputs` for the result `name`."""
        return f"papers.{name.partition('_')[0]}.inputs"


Entries = Annotated[dict[Identifier, Entry], Field(default_factory=dict)]
Names = Annotated[dict[Identifier, str], Field(default_factory=dict)]


class Paper(Section):
    """All results of one paper."""

    title: str = Field(min_length=1)
    caption: str = Field(min_length=1)
    shared: Any = None  # anchors for content shared by several entries
    # Names for pages of experiments, beside those that figures and tables give.
    models: Names
    attacks: Names
    figures: Entries
    tables: Entries

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """Return enabled entries of `figures` or `tables`."""
        found: dict[str, Entry] = getattr(self, kind)
        return {name: entry for name, entry in found.items() if entry.enabled}


def load(path: Path) -> Paper:
    """Read and validate one results.yaml; `ConfigError` names file, key, value and remedy."""
    try:
        paper = Paper.model_validate(yaml_checks.read(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, Paper)}") from error
    for kind in ("figures", "tables"):
        for name, entry in getattr(paper, kind).items():
            where, own = f"{path}: {kind}.{name}", path.parent.name
            if module_path(entry.make) is None:
                raise ConfigError(
                    f"{where}.make: there is no module {entry.make}; name one that has a function "
                    "make."
                )
            if name.partition("_")[0] != own:
                raise ConfigError(
                    f"{where}: results of {own} have names that begin with {own}_; rename it."
                )
            inputs = module_path(entry.inputs_module(name))  # not imported, which takes time
            text = inputs.read_text(encoding="utf-8") if entry.inputs and inputs else ""
            if entry.inputs and f"\ndef {entry.inputs}(" not in text:
                raise ConfigError(
                    f"{where}.inputs: {path.with_name('inputs.py')} has no function "
                    f"{entry.inputs}; define it, or take the key out."
                )
    return paper
