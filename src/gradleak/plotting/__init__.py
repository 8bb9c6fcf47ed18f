"""Figures: one module each with ``make(files, words, scale)``, called by the scripts.

`files` are paths by a rule's input name, `words` labels and further settings of the rule, `scale`
that of the run. Incomplete files raise an `ArtifactError` of one sentence.
"""

from gradleak.errors import require_extra

require_extra("pipeline", "matplotlib")
