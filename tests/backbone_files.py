"""Untrained networks in the shape of those that LPIPS looks through, and files of them."""

import torch
from safetensors.torch import save_file

from gradleak.data import backbones


def untrained(network, seed=0):
    """Convolutions with random weights, drawn so that features neither vanish nor explode."""
    features = backbones.empty(network).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in features.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
            parameter.normal_(0.0, (2.0 / fan_in) ** 0.5, generator=generator)
    return features.eval().requires_grad_(False)


def tensors(network, seed=0):
    return untrained(network, seed).state_dict(prefix=backbones.PREFIX)


def write(folder, *networks):
    """Files of untrained networks, as a person may put them into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{network}.safetensors" for network in networks]
    for network, path in zip(networks, paths, strict=True):
        save_file(tensors(network), path)
    return [str(path) for path in paths]
