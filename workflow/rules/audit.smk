# Audits of users' networks: results/audit/{audit}/report.html for each entry of `audit`.
from gradleak_audit import rules as audit_rules

AUDITED = audit_rules.Audits(PATHS)
AUDIT = "results/audit/{audit}/"
AUDITS = ids(CONFIG.audit)
# The page's parts in workflow/report/.
PAGE = ("audit.html.j2", "parts.j2", "base.css", "audit.css", "audit.js", "grades.json")


rule audit:
    input:
        unpack(AUDITED.files),
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
    resources:
        **resources.doubling(6000, 120),
        gpu=ASK.gpu,
    params:
        name=wildcard("audit"),
        settings=AUDITED.settings,
        scale=AUDITED_AT,
        device=CONFIG.device,
        listing=AUDITED.listing,
        code=code("gradleak_audit.from_config", *METHODS),
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
    resources:
        **resources.doubling(2000, 10),
    params:
        code=code("gradleak_audit.report.page"),
    message:
        "Write the page of the audit {wildcards.audit}"
    script:
        "../scripts/audit_report.py"


# Fails if the network leaks more than `limit` or `baseline` allow; the report is made all the same.
rule audit_gate:
    input:
        result=f"{AUDIT}audit.json",
        report=f"{AUDIT}report.html",
        baseline=AUDITED.baseline_file,
    output:
        f"{AUDIT}passed.txt",
    log:
        "results/logs/audit/{audit}/passed.log",
    wildcard_constraints:
        audit=AUDITS,
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(1000, 10),
    params:
        limit=AUDITED.value("limit"),
        baseline=AUDITED.value("baseline"),
        counts=AUDITED.value("counts"),
        code=code("gradleak_audit.report.ci_gate"),
    message:
        "Hold the audit {wildcards.audit} against its limit"
    script:
        "../scripts/audit_gate.py"


rule audits:
    input:
        expand(f"{AUDIT}report.html", audit=CONFIG.audit),
        expand(f"{AUDIT}passed.txt", audit=AUDITED.gated),
    localrule: True
    message:
        "All audits are made"
