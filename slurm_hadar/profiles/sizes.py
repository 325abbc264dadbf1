"""How many parameters models have, and so how many bytes of gradients their GPUs exchange."""

from slurm_hadar.profiles.table import model_key

BYTES_PER_PARAMETER = 4.0
"""Gradients in 32-bit floats, as PyTorch's DistributedDataParallel sends them by default."""

_MILLIONS = {
    "A3C": 0.3,
    "AlexNet": 61.1,
    "BERT-base": 110.0,
    "BERT-large": 340.0,
    "CycleGAN": 28.3,
    "DenseNet-121": 8.0,
    "EfficientNet-B0": 5.3,
    "GPT-2": 124.0,
    "GPT-2-medium": 355.0,
    "Inception-v3": 27.2,
    "LM": 21.0,
    "MobileNet-v2": 3.5,
    "Recommendation": 24.3,
    "ResNet-18": 11.7,
    "ResNet-50": 25.6,
    "ResNet-101": 44.5,
    "ResNet-152": 60.2,
    "Transformer": 65.0,
    "VGG-16": 138.4,
    "VGG-19": 143.7,
    "ViT-B-16": 86.6,
}
"""Millions of parameters: the image models as torchvision states them, the others recalled from
their papers; LM and Recommendation (Gavel's) computed from their layers as recalled."""

_BY_KEY = {model_key(name): millions for name, millions in _MILLIONS.items()}


def parameters(model: str) -> float:
    """Parameters of a model by its name, 0 where it is not known."""
    return 1e6 * _BY_KEY.get(model_key(model), 0.0)


def gradient_bytes(model: str) -> float:
    """Bytes of gradients per step, 0 where the model is not known."""
    return BYTES_PER_PARAMETER * parameters(model)
