# Inputs and parameters of audits, as functions of their wildcards.


def audit_settings(wildcards):
    """Entry of `audit`."""
    entry = settings("audit", wildcards.audit)
    # These decide what passes, not what is found.
    return {key: value for key, value in entry.items() if key not in ("limit", "baseline")}


def there(path):
    """A file of one's own as an input; where it is missing, the script says what to do."""
    return [path] if path and Path(path).is_file() else []


def audit_files(wildcards):
    """Files that an audit reads: the network's, its weights, its images."""
    entry = CONFIG.audit[wildcards.audit]
    samples = getattr(entry.samples, "dataset", None)
    dataset = []
    if samples:
        name = resolve(samples, CONFIG.images)
        dataset = [ARRAYS.format(dataset=name, split=entry.samples.split)]
    return {
        "network": there(getattr(entry.network, "file", None)),
        "weights": there(entry.weights),
        "dataset": dataset,
    }


def audit_listing(wildcards):
    """What stands for a folder of one's own images."""
    return shared_cache.listing(getattr(CONFIG.audit[wildcards.audit].samples, "folder", None))


def audit_baseline(wildcards):
    """The earlier result that an audit is held against."""
    return there(CONFIG.audit[wildcards.audit].baseline)
