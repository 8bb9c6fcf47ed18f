"""Findings of audits that nobody ran, for tests of the page: every grade, gap and odd name."""

import numpy as np

from gradleak.auditing.page_pictures import Pictures
from gradleak.auditing.result import (
    AttackPart,
    Audit,
    Case,
    Change,
    LayerRow,
    Network,
    Price,
    Run,
    Setting,
    Spread,
    StructurePart,
    Verdict,
    Worst,
)

# Names as people give them; a page that does not escape them breaks.
ODD = "<b>Net & \"Co\"</b> 'x' <script>alert(1)</script>"
LONG = "features.denseblock1.denselayer1.very_long_name_of_a_module_that_never_ends.conv1"
IMAGES, SEEDS = 3, 2


def run(image, seed, ssim, psnr=None, **more):
    """A run that is ok with that SSIM; with None, one that failed."""
    if ssim is None:
        reason = more.pop("reason", "the search met NaN at step 7")
        return Run(
            image=image,
            seed=seed,
            status="failed",
            reason=reason,
            psnr=None,
            ssim=None,
            matched=False,
            readable=False,
        )
    psnr = 10 + 30 * ssim if psnr is None else psnr
    own = {"status": "ok", "reason": "", "matched": ssim > 0.2, "readable": ssim >= 0.5}
    return Run(image=image, seed=seed, psnr=psnr, ssim=ssim, **(own | more))


def spread(values):
    return Spread(mean=sum(values) / len(values), low=min(values), high=max(values))


def case(change, attack, runs, batch=1):
    """A case whose counts are those of its runs."""
    ok = [found for found in runs if found.status == "ok"]
    return Case(
        change=change,
        attack=attack,
        batch=batch,
        attempted=len(runs),
        ok=len(ok),
        readable=sum(found.readable for found in runs),
        matched=sum(found.matched for found in runs),
        psnr=spread([found.psnr for found in ok]) if ok else None,
        ssim=spread([found.ssim for found in ok]) if ok else None,
        runs=tuple(runs),
    )


def not_applicable(change, attack, reason):
    """A case of an attack that does not apply under a change."""
    more = {"status": "not_applicable", "matched": False, "readable": False, "reason": reason}
    none = [run(i, 0, 0.0).model_copy(update=more | {"psnr": None, "ssim": None}) for i in (0, 1)]
    return case(change, attack, none).model_copy(update={"attempted": 0})


def runs(ssims):
    """A run for each image and draw, in turn with these SSIMs."""
    return [
        run(image, seed, ssims[(image * SEEDS + seed) % len(ssims)])
        for image in range(IMAGES)
        for seed in range(SEEDS)
    ]


def layer(name, kind="conv", **more):
    counts = "unknowns own_unknowns weights outputs carried virtual index rank free condition"
    empty = dict.fromkeys(counts.split())
    own = {
        "detail": "Conv2d(3, 12, kernel_size=(5, 5), stride=(2, 2))",
        "input": (3, 32, 32),
        "output": (12, 16, 16),
        "parameters": 912,
        "rank_kind": "",
        "critical": False,
        "readable": True,
        "note": "",
    }
    return LayerRow(layer=name, kind=kind, **(empty | own | more))


def counted(name, index, rank_kind="exact", carried=0, **more):
    """A layer with unknowns and equations."""
    own = {
        "unknowns": 3072 + carried,
        "own_unknowns": 3072,
        "weights": 900,
        "outputs": 2172 + carried - index,
        "carried": carried,
        "virtual": 0,
        "index": index,
        "rank": 2060,
        "rank_kind": rank_kind,
        "free": 1012,
        "condition": 73.456,
    }
    return layer(name, **(own | more))


def structure(**more):
    layers = (
        counted("c1", -2100),
        counted(LONG, 5400, "at most", condition=None, critical=True, carried=1234567),
        counted("c3", 0, "measured", condition=1.5e9, note="a filter or its dJ/dZ is 0"),
        layer("bn1", "norm", detail="BatchNorm2d(12)"),
        layer(
            "attn",
            "other",
            readable=False,
            note="attn is attention: it multiplies values made of its input with each other.",
        ),
        counted(ODD, -1, condition=float("inf"), virtual=0, free=0, rank=3072),
    )
    own = {
        "layers": layers,
        "index": 5400,
        "critical": LONG,
        "security": -1012.5,
        "security_kind": "at most",
        "security_note": "",
        "chain": "",
    }
    return StructurePart(**(own | more))


ATTACKS = (
    AttackPart(
        id="copa",
        title="COPA",
        chapter="honest server",
        settings="closed form, least squares",
        reason="",
    ),
    AttackPart(
        id="ig",
        title="Inverting Gradients",
        chapter="honest server",
        settings="200 steps, cosine & total variation",
        reason="",
    ),
    AttackPart(
        id="rgap",
        title="R-GAP",
        chapter="honest server",
        settings="closed form",
        reason="ReLU is <not> invertible & gives 0.",
    ),
    AttackPart(
        id="mkor",
        title="MKOR",
        chapter="malicious server",
        settings="batch of 3",
        reason="",
    ),
    AttackPart(
        id="fishing",
        title="Class fishing",
        chapter="malicious server",
        settings="one class",
        reason="The last layer has no bias.",
    ),
)


def change(
    name, kind="noise", leak=0.0, ssim=0.1, attack="ig", reason="", price=None, title="", **more
):
    return Change(
        id=name,
        title=title or f"Change {name}",
        kind=kind,
        reason=reason,
        leak=leak,
        read=0 if leak is None else round(6 * leak),
        gradients=0 if leak is None else 6,
        ssim=ssim,
        attack=attack,
        effect=more.get("effect", "" if leak is None or kind == "none" else "no difference shown"),
        p=more.get("p"),
        note=more.get("note", ""),
        price=price,
    )


def price(**more):
    own = {
        "parameters": 1.0,
        "multiply_adds": 1.0,
        "seconds": 1.02,
        "accuracy": 0.612,
        "baseline": 0.655,
        "note": "",
    }
    return Price(**(own | more))


CHANGES = (
    change("none", "none", 0.5, 0.61, "copa", price=price(accuracy=0.655), title="As it is"),
    change(
        "noise_1",
        leak=0.0,
        ssim=0.08,
        price=price(),
        title="Noise of 0.1 & more",
        effect="helps",
        p=0.0039,
    ),
    change(
        "fewer",
        "fewer",
        1 / 6,
        0.33,
        price=price(
            parameters=0.512,
            multiply_adds=0.25,
            seconds=None,
            accuracy=None,
            baseline=None,
            note="no data set with labels was given",
        ),
        title=f"Half the filters of {LONG}",
        effect="helps",
        p=0.0078,
    ),
    change("batch", "batch", 0.5, 0.6, "copa", title="Batches of 4", effect="inconclusive"),
    change("lock", "lock", 1.0, 0.97, price=price(seconds=121.6), title="Key-lock", note="<b>"),
    change(
        "cut",
        "cut",
        None,
        None,
        "",
        "the network has no skip that could be cut",
        title="Cut the largest <skip>",
    ),
)


def cases():
    good, bad = [0.9, 0.1, 0.7, 0.3, 0.99, 0.05], [0.1, None, 0.02, 0.0, 0.12, 0.15]
    return (
        case("none", "copa", runs(good)),
        case("none", "ig", runs(bad)),
        case("none", "mkor", [run(0, 0, 0.8), run(1, 0, 0.3), run(2, 0, None)], batch=3),
        case("noise_1", "copa", runs([None])),
        not_applicable("fewer", "copa", "c1 has too few filters"),
        case("noise_1", "ig", runs([0.08])),
        case("fewer", "ig", runs([0.6, 0.1, 0.2, 0.3, 0.1, 0.2])),
        case("lock", "ig", runs([0.97])),
        case("noise_1", "mkor", [run(0, 0, 0.4), run(0, 1, 0.2)], batch=3),
    )


def audit(grade="leaks", **more):
    """Findings of a grade, with something of everything."""
    verdict = Verdict(
        grade=grade,
        sentence="From one shared gradient, 3 of 6 pictures could be read again <at 1 & 2>.",
        advice="Of what was tried, Noise <of> 0.1 helped most.",
        malicious="A server that sends weights of its own could read 1 of 2 pictures & more.",
        rests_on=("COPA and Inverting Gradients", "3 gradients of 1 image in 2 draws"),
        limits=("weights were drawn afresh", 'only "few" images & draws'),
        worst=Worst(attack="copa", image=2, seed=0, psnr=39.7, ssim=0.99),
        ranking=("noise_1", "fewer"),
    )
    own = {
        "version": 1,
        "name": "my_net",
        "network": Network(
            source=f"factory of my <file>.py, {ODD}",
            kind=ODD,
            input=(3, 32, 32),
            classes=10,
            parameters=11_173_962,
            multiply_adds=556_651_520,
            weights="fresh weights, seed 0",
        ),
        "setting": Setting(
            loss="cross_entropy",
            mode="training",
            images="photos that ship with scikit-image & scikit-learn",
            count=IMAGES,
            gallery=20,
            seeds=SEEDS,
            batches=(1, 4),
            scale="laptop",
        ),
        "structure": structure(),
        "attacks": ATTACKS,
        "cases": cases(),
        "changes": CHANGES,
        "verdict": verdict,
    }
    return Audit(**(own | more))


def bare():
    """Findings with as little in them as may be."""
    empty = structure(
        layers=(),
        index=None,
        critical="",
        security=None,
        security_kind="",
        security_note="c(M) is of a chain: two branches meet at cat.",
        chain="two branches meet at cat.",
    )
    verdict = Verdict(
        grade="not shown",
        sentence="No attack could be run.",
        advice="Of what was tried, Noise <of> 0.1 helped most.",
        malicious="A server that sends weights of its own was not tried.",
        rests_on=(),
        limits=(),
        worst=None,
        ranking=(),
    )
    unchanged = change("none", "none", None, None, "", title="As it is")
    refused = tuple(
        attack.model_copy(update={"reason": attack.reason or "it needs a chain"})
        for attack in ATTACKS
    )
    return audit(structure=empty, verdict=verdict, changes=(unchanged,), cases=(), attacks=refused)


def pictures(count=IMAGES, channels=3, side=32, attacks=("copa", "ig", "mkor")):
    """Waves, and the same in noise."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[0:side, 0:side] / side
    phases = rng.uniform(0, 6, (count, channels, 1, 1))
    originals = 0.5 + 0.5 * np.sin(phases + 9 * down * across + 5 * across)
    noisy = {
        attack: {
            image: originals[image] + rng.normal(0, 0.1 + 0.3 * place, originals[image].shape)
            for image in range(count)
            if (attack, image) != ("ig", 0)
        }
        for place, attack in enumerate(attacks)
    }
    return Pictures(originals, noisy)
