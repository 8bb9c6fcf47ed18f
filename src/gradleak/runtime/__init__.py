"""Files, jobs and provenance: what every stage uses."""
