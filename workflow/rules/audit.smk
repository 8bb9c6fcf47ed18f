# Audits of networks of one's own: results/audit/{audit}/report.html for each entry of `audit`.

AUDIT = "results/audit/{audit}/"
AUDITS = ids(CONFIG.audit)
# Attacks, defences and servers are looked up by name, so their code is named here.
KINDS = ("attacks", "defences", "servers")
METHODS = sorted({file for kind in KINDS for file in registry.modules(kind).values()})
# The page's parts in workflow/report/.
PAGE = ("audit.html.j2", "base.css", "audit.css", "audit.js")
# Results to make for all entries; passed.txt for those with something to pass.
GATED = [name for name, entry in CONFIG.audit.items() if entry.limit is not None or entry.baseline]


rule audit:
    input:
        unpack(audit_files),
        sentences=beside_snakefile("workflow/report/verdict.j2"),
    output:
        result=f"{AUDIT}audit.json",
        pictures=f"{AUDIT}pictures.safetensors",
        seconds=f"{AUDIT}seconds.json",
    log:
        "results/logs/audit/{audit}/audit.log",
    benchmark:
        "results/benchmarks/audit/{audit}.tsv"
    wildcard_constraints:
        audit=AUDITS,
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(6000),
        runtime=doubling(120),
        gpu=GPU,
    params:
        name=wildcard("audit"),
        settings=audit_settings,
        scale=CONFIG.scale,
        device=CONFIG.device,
        listing=audit_listing,
        code=code("gradleak.auditing.entry", *METHODS),
    message:
        "Audit {wildcards.audit}"
    script:
        "../scripts/audit.py"


rule audit_report:
    input:
        result=f"{AUDIT}audit.json",
        pictures=f"{AUDIT}pictures.safetensors",
        seconds=f"{AUDIT}seconds.json",
        template=[beside_snakefile(f"workflow/report/{name}") for name in PAGE],
    output:
        f"{AUDIT}report.html",
    log:
        "results/logs/audit/{audit}/report.log",
    wildcard_constraints:
        audit=AUDITS,
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(2000),
        runtime=doubling(10),
    params:
        code=code("gradleak.auditing.page"),
    message:
        "Write the page of the audit {wildcards.audit}"
    script:
        "../scripts/audit_report.py"


# Fails if the network leaks more than `limit` or `baseline` allow; the report is made all the same.
rule audit_gate:
    input:
        result=f"{AUDIT}audit.json",
        report=f"{AUDIT}report.html",
        baseline=audit_baseline,
    output:
        f"{AUDIT}passed.txt",
    log:
        "results/logs/audit/{audit}/passed.log",
    wildcard_constraints:
        audit=AUDITS,
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(1000),
        runtime=doubling(10),
    params:
        limit=lambda wildcards: CONFIG.audit[wildcards.audit].limit,
        baseline=lambda wildcards: CONFIG.audit[wildcards.audit].baseline,
        code=code("gradleak.auditing.gate"),
    message:
        "Hold the audit {wildcards.audit} against its limit"
    script:
        "../scripts/audit_gate.py"


rule audits:
    input:
        expand(f"{AUDIT}report.html", audit=CONFIG.audit),
        expand(f"{AUDIT}passed.txt", audit=GATED),
    localrule: True
    message:
        "All audits are made"
