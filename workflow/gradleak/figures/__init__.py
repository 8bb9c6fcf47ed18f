"""Figures: each has a module with ``make(files, words, scale)``, which the scripts call.

`files` are paths by the name of a rule's input, `words` what to call things and what else the rule
knows, `scale` is that of the run. What a file lacks is one sentence, an `ArtifactError`.
"""
