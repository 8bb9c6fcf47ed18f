"""Properties of metrics used by claims: direction, scale and labels."""

import math
import re

import numpy as np
import pandas as pd

from gradleak.claims.statistics import FAILED_LOG, MSE_FLOOR

PEAKS = {"psnr": 1.0, "psnr_255": 255.0, "psnr_scaled": 1.0, "psnr_class_mean": 1.0}
# FedKL's PSNR inserts an RMSE on 0 to 255 for the MSE; an MSE of 1e-30 gives 255e-15.
PEAKS["psnr_rmse"] = float(np.sqrt(255e-15))
HIGHER_IS_BETTER = (*PEAKS, "ssim", "ssim_gauss", "ssim_255", "r2", "label_correct", "count")
# Positive metrics that span orders of magnitude.
LOGARITHMIC = (
    *("mse", "rmse_255", "mse_twin", "twin_error", "objective", "evaluations"),
    *("condition", "condition_padding"),
)
# Scores of which 0 says that there is nothing alike, or nothing different.
OF_LIKENESS = (
    *("ssim", "ssim_gauss", "ssim_255", "r2", "lpips", "lpips_alex", "lpips_squeeze"),
    *("lpips_vgg", "lpips_alex_255", "lpips_vgg_255"),
)
# Metrics with a value per image; all others have one per batch.
OF_IMAGES = (
    *PEAKS,
    *("mse", "rmse_255", "ssim", "ssim_gauss", "ssim_255", "coefficient", "duplicates"),
    *("lpips_alex", "lpips_squeeze", "lpips_vgg", "lpips_alex_255", "lpips_vgg_255"),
)
# Metric with a value per class of a batch.
OF_CLASSES = "count"

LABELS = {
    "accuracy": "test accuracy",
    "accuracy_change": "accuracy, less the first network's",
    "alike": "reconstructions that look like one image",
    "asymmetry": "skewness without its sign",
    "c": "c(M)",
    "change": "accuracy with the lock, less without",
    "condition": "condition number",
    "cost": "multiplications of the lock, % of the network's",
    "curve_correlation": "correlation of the curves",
    "evaluations": "gradients computed",
    "expansion": "first layer's outputs per input",
    "first_fewer": "1 if the first layer has the fewest virtual constraints",
    "first_smaller": "1 if the first layer's RA-i is below the median",
    "free": "unknowns left free",
    "gap": "accuracy less that of the random key",
    "images": "images read of a batch",
    "inputs": "inputs of the last layer",
    "iterations": "gradients computed",
    "key": "values of the key",
    "label_wrong": "label not told",
    "lock": "parameters of the lock",
    "lock_multiplications": "multiplications of the lock",
    "loss": "loss",
    "lpips": "LPIPS",
    "lpips_alex": "LPIPS, AlexNet",
    "lpips_alex_255": "the paper's “LPIPS-A”",
    "lpips_squeeze": "LPIPS, SqueezeNet",
    "lpips_vgg": "LPIPS, VGG",
    "lpips_vgg_255": "the paper's “LPIPS-V”",
    "mse": "MSE",
    "mse_input": "MSE at the network's input",
    "mse_twin": "MSE to the twin",
    "multiplications": "multiplications",
    "padding_left": "unknowns that padding leaves without a constraint",
    "padding_unknowns": "unknowns that padding adds",
    "psnr": "PSNR, dB",
    "psnr_255": "the paper's “PSNR”, 48.13 dB more",
    "psnr_class_mean": "PSNR to the class mean, dB",
    "psnr_rmse": "the paper's “PSNR”: of a root, dB",
    "psnr_scaled": "PSNR after the best contrast, dB",
    "r2": "R²",
    "ra": "RA-i",
    "ra_alone": "RA-i of the layers alone",
    "recovered": "images recovered",
    "returned": "images whose start was returned as it was",
    "right": "choices of the better reconstruction",
    "rmse_255": "the paper's “MSE”: a root, of 0..255",
    "sd": "standard deviation",
    "searches": "searches that end there",
    "sd_ratio": "standard deviation, over the first network's",
    "share": "the lock's share of parameters, %",
    "spearman": "Spearman's rank correlation",
    "ssim": "SSIM",
    "ssim_gauss": "SSIM, Gaussian window",
    "wasserstein": "1-Wasserstein distance",
    "ssim_255": "the paper's SSIM, of pixels that overflow",
    "statistics": "running statistics of norms",
    "to_one": "correlation with the one image",
    "to_originals": "correlation with the originals",
    "twin_error": "distance to the twin",
    "zero_scale": "share of channels with scale 0",
    "zeros_share": "share of weights that are 0",
}
# Prefixes and suffixes of metrics derived from others.
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


def label(name: str, otherwise: str = "") -> str:
    """Label of a metric, or `otherwise` if only its name in the code is known.

    Names are those of the column ``metric`` of our tables; docs/metrics.md explains each.
    """
    if name in LABELS:
        return LABELS[name]
    if equation := EQUATION.fullmatch(name):
        return f"Equation ({equation[1]})" + (", as printed" if equation[2] else "")
    for pattern, words in TAKEN.items():
        start, end = pattern.split("{}")
        inner = name[len(start) : len(name) - len(end)]
        if name == f"{start}{inner}{end}" and inner in LABELS:
            return words.format(LABELS[inner])
    return otherwise


def may_be_zero(metric: str) -> bool:
    """True for scores such as SSIM, whose 0 is a value like others, so that factors say nothing."""
    return metric in OF_LIKENESS


def worst(metric: str) -> float:
    """Value assigned to a failed run."""
    return -math.inf if metric in HIGHER_IS_BETTER else math.inf


def is_error_or_psnr(metric: str) -> bool:
    """True if differences of `cost` are logarithms of a ratio of errors."""
    return metric in LOGARITHMIC or metric in PEAKS


def cost(values: pd.Series, metric: str) -> pd.Series:
    """Return log10 of an error, −PSNR/10 or −SSIM, lower is better; 300 for a failed run (NaN)."""
    if metric in LOGARITHMIC:
        scaled = np.log10(values.clip(lower=MSE_FLOOR))
    elif metric in PEAKS:
        scaled = -values / 10
    else:
        scaled = -values if metric in HIGHER_IS_BETTER else values
    return scaled.clip(upper=FAILED_LOG).fillna(FAILED_LOG)


def label_of_cost(name: str) -> str:
    """Label of a lower-is-better quantity, for metrics that `cost` leaves unchanged."""
    shown = label(name, name)
    return f"1 − {shown}" if name in HIGHER_IS_BETTER else shown
