"""Shapes of the models of shipped profiles, and their FLOP."""

from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape

LLAMA_3_8B = ModelShape(32, 4096, 32, 8, 128, 14336, 128256)  # and Llama-3.1-8B
LLAMA_3_70B = ModelShape(80, 8192, 64, 8, 128, 28672, 128256)
QWEN15_4B = ModelShape(40, 2560, 20, 20, 128, 6912, 151936)
QWEN15_7B = ModelShape(32, 4096, 32, 32, 128, 11008, 151936)
QWEN2_7B = ModelShape(28, 3584, 28, 4, 128, 18944, 152064)
QWEN25_14B = ModelShape(48, 5120, 40, 8, 128, 13824, 152064)
QWEN3_8B = ModelShape(36, 4096, 32, 8, 128, 12288, 151936)
QWEN3_32B = ModelShape(64, 5120, 64, 8, 128, 25600, 151936)
QWEN3_30B_A3B = MixtureShape(48, 2048, 32, 4, 128, 768, 151936, experts=128, chosen=8)


def token_flop(shape: DecoderShape) -> int:
    """Count FLOP of a token's linear operators: two a weight. The LM head runs once a request, not a token."""
    return 2 * (shape.used_weights + shape.norm_weights)


def pair_flop(shape: ModelShape) -> int:
    """Count FLOP of one token's attention to another, in all layers: a product with its key and one with its value."""
    return 4 * shape.layers * shape.heads * shape.head_dim
