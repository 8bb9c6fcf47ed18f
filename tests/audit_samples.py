"""Findings of audits that nobody ran: every grade, gap and odd name; what a page shows of them."""

import numpy as np

from gradleak.reading.layer_rows import LayerRow, Obstacle, StructurePart
from gradleak_audit import result
from gradleak_audit.attack.trials import case
from gradleak_audit.report import page
from gradleak_audit.report.files import Pictures
from html_tree import parse

# Names as people give them; a page that does not escape them breaks.
ODD = "<b>Net & \"Co\"</b> 'x' <script>alert(1)</script>"
LONG = "features.denseblock1.denselayer1.very_long_name_of_a_module_that_never_ends.conv1"
DETAIL = "Conv2d(3, 12, kernel_size=(5, 5), stride=(2, 2))"
IMAGES, SEEDS = 3, 2
# Words of each grade: its label, and how its meaning begins.
GRADES = {
    "read": ("It leaks", "At least one reconstruction from the unchanged network shows its image."),
    "partly": (
        "It leaks in part",
        "No reconstruction shows a whole image, but some show part",
    ),
    "not shown": ("No leak was shown", "That is no proof of safety."),
}


def run(image, seed, ssim, psnr=None, **more):
    own = {"status": "ok", "reason": "", "psnr": psnr, "ssim": ssim, "smoothed": None}
    if ssim is None:
        own |= {"status": "failed", "reason": "NaN at step 7"}
    elif psnr is None:
        own["psnr"] = 10 + 30 * ssim
    grade = "read" if (ssim or 0) >= 0.5 else "partly" if (ssim or 0) >= 0.3 else "not shown"
    own |= {"matched": (ssim or 0) > 0.2, "grade": grade}
    if own["matched"]:
        own["smoothed"] = 0.9 * ssim + 0.05
    return result.Run(image=image, seed=seed, **(own | more))


def tried(change, attack, runs, batch=1):
    return case(change, attack, batch, runs)


def not_applicable(change, attack, reason):
    none = [run(i, 0, None, status="not_applicable", reason=reason) for i in (0, 1)]
    return case(change, attack, 1, none)


def runs(ssims):
    pairs = [(image, seed) for image in range(IMAGES) for seed in range(SEEDS)]
    return [run(*pair, ssims[k % len(ssims)]) for k, pair in enumerate(pairs)]


def layer(name, kind="conv", **more):
    counts = "unknowns own_unknowns weights outputs carried virtual index rank free condition"
    own = {"detail": DETAIL, "parameters": 912}
    own |= {"input": (3, 32, 32), "output": (12, 16, 16), "rank_kind": "", "note": ""}
    own |= {"critical": False, "readable": True}
    return LayerRow(layer=name, kind=kind, **(dict.fromkeys(counts.split()) | own | more))


def counted(name, index, rank_kind="exact", carried=0, **more):
    own = {"unknowns": 3072 + carried, "own_unknowns": 3072, "carried": carried, "weights": 900}
    own |= {"outputs": 2172 + carried - index, "virtual": 0, "index": index, "rank": 2060}
    own |= {"rank_kind": rank_kind, "free": 1012, "condition": 73.456}
    return layer(name, **(own | more))


def structure(**more):
    why = "is attention: it multiplies values made of its input with each other."
    layers = (
        counted("c1", -2100),
        counted(LONG, 5400, "at most", condition=None, critical=True, carried=1234567),
        counted(
            "c3",
            0,
            "measured",
            condition=1.5e9,
            note="a filter, or the gradient of its output, is 0",
        ),
        layer("bn1", "norm", detail="BatchNorm2d(12)"),
        layer("attn", "other", readable=False, note=f"attn {why}"),
        counted(ODD, -1, condition=float("inf"), virtual=0, free=0, rank=3072),
    )
    own = {"layers": layers, "index": 5400, "critical": LONG}
    own["obstacles"] = (Obstacle(layers=("attn", "attn_1"), reason=why),)
    own |= {"security": -1012.5, "security_kind": "at most", "security_note": ""}
    return StructurePart(**(own | more))


BAD = "malicious server"


def part(name, title, settings, reason="", chapter="honest server"):
    own = {"id": name, "title": title, "chapter": chapter, "settings": settings}
    own["threat"] = "F" if chapter == BAD else "B"
    return result.AttackPart(**own, reason=reason)


ATTACKS = (
    part("copa", "COPA", "closed form, least squares"),
    part("ig", "Inverting Gradients", "200 steps"),
    part("rgap", "R-GAP", "closed form", "ReLU is <not> invertible & gives 0."),
    part("mkor", "MKOR", "batch of 3", "", BAD),
    part("fishing", "Class fishing", "one class", "The last layer has no bias.", BAD),
)


def change(name, kind="noise", leak=0.0, ssim=0.1, attack="ig", **more):
    none = leak is None
    own = {"title": f"Change {name}", "reason": "", "p": None, "note": "", "price": None}
    own |= {"read": 0 if none else round(6 * leak), "partly": 0, "gradients": 0 if none else 6}
    own["effect"] = "" if none or kind == "none" else "no difference shown"
    return result.Change(id=name, kind=kind, leak=leak, ssim=ssim, attack=attack, **(own | more))


def price(**more):
    own = {"parameters": 1.0, "multiply_adds": 1.0, "seconds": 1.02, "note": ""}
    return result.Price(**(own | {"accuracy": 0.612, "baseline": 0.655} | more))


NOTHING = dict.fromkeys(("seconds", "accuracy", "baseline"))
HALF = price(parameters=0.512, multiply_adds=0.25, note="no labelled data was given", **NOTHING)
NO_SKIP = "the network has no skip that could be cut"
NOISE, HALVED = "Noise of 0.1 & more", f"Half the filters of {LONG}"
SOME = {"read": 2, "partly": 1}
CHANGES = (
    change(
        "none", "none", 0.5, 0.61, "copa", **SOME, price=price(accuracy=0.655), title="As it is"
    ),
    change("noise_1", ssim=0.0, price=price(accuracy=0.0), title=NOISE, effect="helps", p=0.0039),
    change("fewer", "fewer", 1 / 6, 0.33, price=HALF, title=HALVED, effect="helps", p=0.0078),
    change("batch", "batch", 0.5, 0.6, "copa", title="Batches of 4", effect="inconclusive"),
    change("lock", "lock", 1.0, 0.97, price=price(seconds=121.6), title="Key-lock", note="<b>"),
    change("cut", "cut", None, None, "", title="Cut the largest <skip>", reason=NO_SKIP),
)


def cases():
    good, bad = [0.9, 0.1, 0.7, 0.3, 0.99, 0.05], [0.1, None, 0.02, 0.0, 0.12, 0.15]
    lost = (
        run(1, 0, None),
        run(1, 1, None, reason="NaN at step 12"),
        run(2, 0, None, reason="out of memory"),
    )
    return (
        tried("none", "copa", runs(good)),
        tried("none", "ig", runs(bad)),
        tried("none", "mkor", [run(0, 0, 0.8), run(1, 0, 0.3), run(2, 0, None)], batch=3),
        tried("noise_1", "copa", runs([None])),
        not_applicable("fewer", "copa", "c1 has too few filters"),
        tried("noise_1", "ig", [run(*divmod(i, SEEDS), 0.0, 0.0) for i in range(6)]),
        tried("fewer", "ig", runs([0.6, 0.1, 0.2, 0.3, 0.1, 0.2])),
        tried("lock", "ig", runs([0.97])),
        tried("noise_1", "mkor", [run(0, 0, 0.4), run(0, 1, 0.2), *lost], batch=3),
    )


VERDICT = result.Verdict(
    grade="read",
    matched=0,
    sentence="From one shared gradient, 3 of 6 images could be read <at 1 & 2>.",
    advice="Of what was tried, Noise <of> 0.1 helped most.",
    malicious="A server that sends weights of its own could read 1 of 2 images & more.",
    rests_on=("COPA and Inverting Gradients", "3 gradients of 1 image under 2 seeds"),
    limits=("weights were drawn afresh", 'only "few" images & seeds'),
    worst=result.Worst(attack="copa", image=2, seed=0, psnr=39.7, ssim=0.99),
    ranking=("noise_1", "fewer"),
)
WORDS = {"source": f"factory of my <file>.py, {ODD}", "kind": ODD, "weights": "fresh, seed 0"}
SIZES = {"parameters": 11_173_962, "multiply_adds": 556_651_520}
NETWORK = result.Network(input=(3, 32, 32), classes=10, **WORDS, **SIZES)
HOW = {"loss": "cross_entropy", "mode": "training", "scale": "laptop", "batches": (1, 4)}
TRIED = {"count": IMAGES, "gallery": 20, "seeds": SEEDS, "images": "photos of skimage & sklearn"}
SETTING = result.Setting(**HOW, **TRIED)


def audit(grade="read", said=None, **more):
    """Findings of a grade, with something of everything; `said` changes the verdict."""
    own = {"version": result.VERSION, "name": "my_net", "network": NETWORK, "setting": SETTING}
    own |= {"structure": structure(), "attacks": ATTACKS, "cases": cases(), "changes": CHANGES}
    own["verdict"] = VERDICT.model_copy(update={"grade": grade} | (said or {}))
    return result.Audit(**(own | more))


def bare():
    why = "cannot be a step of a chain: a chain has others."
    none = {"index": None, "critical": "", "security": None, "security_kind": "", "layers": ()}
    own = (Obstacle(layers=("cat", "cat_1"), reason=why),)
    empty = structure(security_note="c(M) is defined for chains.", obstacles=own, **none)
    said = {"sentence": "No attack could be run.", "malicious": "It was not tried.", "worst": None}
    said |= dict.fromkeys(("rests_on", "limits", "ranking"), ())
    refused = [a.model_copy(update={"reason": a.reason or "it needs a chain"}) for a in ATTACKS]
    parts = {"changes": [change("none", "none", None, None, "", title="As it is")], "cases": ()}
    return audit("not shown", said, structure=empty, attacks=refused, **parts)


def pictures(channels=3, side=32):
    rng = np.random.default_rng(0)
    down, across = np.mgrid[0:side, 0:side] / side
    phases = rng.uniform(0, 6, (IMAGES, channels, 1, 1))
    originals = 0.5 + 0.5 * np.sin(phases + 9 * down * across + 5 * across)
    spread = {"copa": 0.1, "ig": 0.4, "mkor": 0.7}
    noisy = {name: originals + rng.normal(0, s, originals.shape) for name, s in spread.items()}
    answers = {name: dict(enumerate(images)) for name, images in noisy.items()}
    del answers["ig"][0]
    nearest = {"none": "copa", "noise_1": "ig", "fewer": "ig", "lock": "ig"}
    changes = {change: (name, 0, noisy[name][0]) for change, name in nearest.items()}
    return Pictures(originals, answers, changes)


def tree(findings=None, shown=None, command=None):
    findings = audit() if findings is None else findings
    return parse(page.render(findings, pictures() if shown is None else shown, command))


def table(of, name):
    found = of.one("table", id=name)
    headers = [cell.text() for cell in found.one("thead").all("th")]
    rows = found.one("tbody").all("tr")
    return [dict(zip(headers, row.all("th", "td"), strict=True)) for row in rows]


def lines(of, name):
    """Headers and rows of a table as text."""
    rows = table(of, name)
    texts = [" | ".join(rows[0]), *(" | ".join(c.text() for c in row.values()) for row in rows)]
    for text, short in ((LONG, "LONG"), (ODD, "ODD"), (DETAIL, "CONV"), ("  |", " |")):
        texts = [line.replace(text, short).strip() for line in texts]
    return texts


def terms(*lists):
    """Term -> text of lists of terms."""
    pairs = [zip(listed.all("dt"), listed.all("dd"), strict=True) for listed in lists]
    return {name.text(): text.text() for pair in pairs for name, text in pair}


def all_terms(html, name):
    return terms(*html.one("section", id=name).all("dl"))


def classes(element):
    return element.get("class", "").split()


AUDITS = {grade: audit(grade) for grade in GRADES} | {"bare": bare()}
