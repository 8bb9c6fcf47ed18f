"""What "ours", its interval and a metric are, in words."""

from __future__ import annotations

import re

from gradleak.claims.model import Claim, Tolerance
from gradleak.claims.queries import (
    Close,
    Column,
    Compare,
    Estimates,
    Limit,
    Printed,
    Runs,
)
from gradleak.claims.values import DECIBEL, HIGHER_IS_BETTER, LOGARITHMIC

# An interval from the least to the largest value of ours.
EXTREMES = "least and largest"
# Rules by which every value has to agree, so that low and high are the extremes.
EVERY = ("absolute", "at_most", "at_least")
# Intervals of tables that no claim reads a row of.
OF_TABLES = {
    "copa_images": "95 %: one further run",
    "copa_index": "95 %",
    "fedkl_accuracy": "95 %",
    "fedkl_adaptive": "95 %: the mean",
    "fedkl_propositions": EXTREMES,
    "rgap_fig4": "95 %",
    "rgap_resnet101": "95 %",
}
FORMS = {
    "columns": "smallest gap between the two sides; above 0 where all of it holds",
    "share": "share of starts that meet the limit, the one side's less the other's",
    "correlation": "Spearman's rank correlation over networks",
    "trend": "Spearman's rank correlation over batches",
    "effect": "the change's effect less the usual difference between networks, in log10 MSE; "
    "below 0 where the sentence holds",
    "arithmetic": "what the paper's own numbers come to",
    "range": "share of the paper's numbers that lie in the range",
    "loss": "the number that decides, from the loss's formula: a gap, a rise or a count",
}
METRICS = {
    "accuracy": "test accuracy",
    "accuracy_change": "accuracy, less the first network's",
    "asymmetry": "skewness without its sign",
    "c": "c(M)",
    "change": "accuracy with the lock, less without",
    "condition": "condition number",
    "curve_correlation": "correlation of the curves",
    "expansion": "first layer's outputs per input",
    "free": "unknowns left free",
    "gap": "accuracy less that of the random key",
    "images": "images read of a batch",
    "inputs": "inputs of the last layer",
    "iterations": "gradients computed",
    "key": "values of the key",
    "label_wrong": "label not told",
    "lock": "parameters of the lock",
    "lpips": "LPIPS",
    "lpips_alex": "LPIPS, AlexNet",
    "lpips_alex_255": "the paper's “LPIPS-A”",
    "lpips_squeeze": "LPIPS, SqueezeNet",
    "lpips_vgg": "LPIPS, VGG",
    "lpips_vgg_255": "the paper's “LPIPS-V”",
    "mse": "MSE",
    "mse_input": "MSE at the network's input",
    "mse_twin": "MSE to the twin",
    "psnr": "PSNR, dB",
    "psnr_255": "the paper's “PSNR”, 48.13 dB more",
    "psnr_class_mean": "PSNR to the class mean, dB",
    "psnr_rmse": "the paper's “PSNR”: of a root, dB",
    "psnr_scaled": "PSNR after the best contrast, dB",
    "r2": "R²",
    "ra": "RA-i",
    "ra_alone": "RA-i of the layers alone",
    "recovered": "images recovered",
    "rmse_255": "the paper's “MSE”: a root, of 0..255",
    "sd": "standard deviation",
    "sd_ratio": "standard deviation, over the first network's",
    "share": "the lock's share of parameters, %",
    "spearman": "Spearman's rank correlation",
    "ssim": "SSIM",
    "ssim_gauss": "SSIM, Gaussian window",
    "wasserstein": "1-Wasserstein distance",
    "ssim_255": "the paper's SSIM, of pixels that overflow",
    "statistics": "running statistics of norms",
    "twin_error": "distance to the twin",
    "zero_scale": "share of channels with scale 0",
    "zeros_share": "share of weights that are 0",
}
# What a metric's name begins or ends with when it is made of another one.
TAKEN = {
    "max_{}": "largest {}",
    "avg_{}": "mean {}",
    "{}_mean": "mean {}",
    "{}_median": "median {}",
    "{}_sd": "standard deviation of {}",
    "{}_ratio": "{}, over the base's",
    "{}_change": "{}, less the base's",
}
EQUATION = re.compile(r"eq(\d+)(_printed)?")


def metric(name: str) -> str:
    """Label of a metric, or nothing where its name in the code has to do.

    Parameters
    ----------
    name
        As in the column `metric` of our tables; docs/metrics.md says what each is.
    """
    if name in METRICS:
        return METRICS[name]
    equation = EQUATION.fullmatch(name)
    if equation:
        return f"Equation ({equation[1]})" + (", as printed" if equation[2] else "")
    for pattern, words in TAKEN.items():
        start, end = pattern.split("{}")
        inner = name[len(start) : len(name) - len(end)]
        if name == f"{start}{inner}{end}" and inner in METRICS:
            return words.format(METRICS[inner])
    return ""


def interval(claim: Claim, tolerance: Tolerance) -> str:
    """What lies between low and high of a claim: `EXTREMES`, or how sure and of what.

    Parameters
    ----------
    claim, tolerance
        A claim and the tolerance that it names; docs/claims.md has the rules.
    """
    query, level = claim.query, f"{tolerance.level:.0%}".replace("%", " %")
    if isinstance(query, Runs | Column):
        return _of_numbers(query, tolerance, level)
    if isinstance(query, Close):
        return f"{1 - 2 * tolerance.alpha:.0%}".replace("%", " %")
    if isinstance(query, Limit):
        return "95 % of the runs"
    return "95 %"


def _of_numbers(query: Runs | Column, tolerance: Tolerance, level: str) -> str:
    if tolerance.rule in EVERY:
        return EXTREMES
    widened = ", widened" if tolerance.factor > 1 or tolerance.margin > 0 else ""
    of = query.of if isinstance(query, Runs) else "rows"
    if tolerance.rule == "factor":
        return "ours, widened"
    if tolerance.rule == "mean":
        return f"{level}: the mean{widened}"
    further = {"runs": "run", "seeds": "draw", "batches": "batch", "rows": "value"}[of]
    return f"{level}: one further {further}{widened}"


def ours(claim: Claim, tolerance: Tolerance) -> str:
    """What our number beside a claim is; nothing where there is none.

    Parameters
    ----------
    claim, tolerance
        A claim and the tolerance that it names; docs/claims.md has the forms.
    """
    query = claim.query
    match query:
        case Runs():
            return _of_runs(query, tolerance)
        case Column():
            return "what our table has; of several values the median"
        case Compare():
            return _of_compare(query)
        case Close():
            return f"mean difference of {_difference(query)}"
        case Limit():
            return f"median over runs of {_label(query.metric)}"
        case Estimates():
            amount = tolerance.amount or 0
            return f"least clear difference; above {_number(amount)} where the sentence holds"
        case Printed():
            return "cells of the paper's that agree"
        case _:
            return FORMS.get(query.form, "")


def _of_runs(query: Runs, tolerance: Tolerance) -> str:
    name = _label(query.metric)
    if query.of == "batches":
        above = f"count of images whose {name} is {query.over} or more"
        taken = {"max": f"largest {name}", "mean": f"mean {name}"}.get(query.take or "", above)
        return f"mean over batches of each one's {taken}"
    if query.of == "seeds":
        return f"median over draws of the weights of each one's mean {name}"
    return f"{'mean over images' if tolerance.rule == 'mean' else 'median over runs'} of {name}"


def _of_compare(query: Compare) -> str:
    least = "" if len(query.comparisons) == 1 else ", of the least clear comparison"
    if query.metric in (*LOGARITHMIC, *DECIBEL):
        errors = "RMSEs" if query.metric in ("rmse_255", "psnr_rmse") else "MSEs"
        return (
            f"ratio of {errors}, the better side's over the other's{least}; below 1 where it holds"
        )
    return f"mean difference of {_cost(query.metric)}{least}; below 0 where it holds"


def _difference(query: Close) -> str:
    sides = "the first side's less the other's"
    if query.measure == "value":
        return f"{_label(query.metric)}, {sides}"
    logarithm = query.metric in (*LOGARITHMIC, *DECIBEL)
    return f"{'log10 of the error' if logarithm else _cost(query.metric)}, {sides}"


def _cost(name: str) -> str:
    """What is lower where it is better."""
    return f"1 − {_label(name)}" if name in HIGHER_IS_BETTER else _label(name)


def _label(name: str) -> str:
    return metric(name) or name


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")
