"""Weights of a network as a safetensors file: named arrays with shapes, and nothing that is executed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from servegym.baselines.artifact.artifact import ArtifactError
from servegym.baselines.learned.network import Network, Shape

LARGEST_NETWORK = 2**24  # weights: 128 MiB of float64
HEADER_BYTES = 2**16  # limit of the file beyond its weights: names and shapes of a few dozen tensors
SUFFIX = ".safetensors"


def packed(network: Network) -> bytes:
    """Return the weights as safetensors: layer0.weight (outputs x inputs), layer0.bias, ..., float64."""
    import safetensors.numpy

    parts: dict[str, np.ndarray] = {}
    for i, (weight, bias) in enumerate(network.layers):
        parts |= {f"layer{i}.weight": np.ascontiguousarray(weight), f"layer{i}.bias": np.ascontiguousarray(bias)}
    return safetensors.numpy.save(parts)


def unpacked(shape: Shape, folder: Path, file: str, sha256: str) -> Network:
    """Return the network of this shape with weights from a file in the folder.

    Raises ArtifactError for a file name outside the folder, and for a file that is missing, too large, truncated, or
    has other tensors or another digest; PolicyError for weights that are not finite.
    """
    if shape.count > LARGEST_NETWORK:
        raise ArtifactError(f"network: {shape.count} weights; there should be {LARGEST_NETWORK} at most")
    if Path(file).name != file or not file.isprintable():
        raise ArtifactError(f"weights: {file!r} is not the name of a file beside the artifact")
    data = _read(folder / file, shape.count * 8 + HEADER_BYTES)
    try:
        import safetensors.numpy
    except ImportError:
        raise ArtifactError("its weights are read with the package safetensors: pip install safetensors") from None
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # safetensors raises several kinds, some for data types that NumPy does not have
        raise ArtifactError(
            f"weights: {file} is not a file of safetensors ({error}); it may have been cut off"
        ) from None
    wanted: dict[str, tuple[int, ...]] = {}
    for i, (inputs, outputs) in enumerate(shape.layers):
        wanted |= {f"layer{i}.weight": (outputs, inputs), f"layer{i}.bias": (outputs,)}
    for key in sorted(wanted.keys() | tensors.keys()):
        found = tensors[key].shape if key in tensors else "nothing"
        if found != wanted.get(key, "nothing"):
            expected = wanted.get(key, "nothing")
            raise ArtifactError(f"weights: {file}: {key!s:.99} has shape {found}; the network has {expected}")
        if tensors[key].dtype != np.float64:
            raise ArtifactError(f"weights: {file}: {key} is of {tensors[key].dtype}; it should be float64")
    network = Network.from_layers(
        shape, [(tensors[f"layer{i}.weight"], tensors[f"layer{i}.bias"]) for i in range(len(shape.layers))]
    )
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ArtifactError(f"weights: {file} is not the file that was written with it (its sha256 is another)")
    return network


def _read(path: Path, largest: int) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise ArtifactError(f"weights: {path.name} is not a file")
        with path.open("rb") as stream:
            data = stream.read(largest + 1)
    except OSError as error:
        raise ArtifactError(f"weights: {path.name}: {error.strerror or error}") from None
    except ValueError as error:
        raise ArtifactError(f"weights: {path.name!r} is no name of a file ({error})") from None
    if len(data) > largest:
        raise ArtifactError(f"weights: {path.name} has more than the {largest:,} bytes that its network takes")
    return data
