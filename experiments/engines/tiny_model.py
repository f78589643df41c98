"""Make a small Llama with a byte-level tokenizer, from nothing: a model for engines whose answers nobody reads.

    python -m experiments.engines.tiny_model FOLDER                    # for the emulated device
    python -m experiments.engines.tiny_model FOLDER --weights          # with random weights, to run

Run it with the Python of an engine's environment: it needs transformers, and torch for weights.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = 512  # 256 bytes, two special tokens, and names that no text has
CONTEXT_TOKENS = 131072


@dataclass(frozen=True)
class Shape:
    """Of a Llama. Head size is hidden / heads."""

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    intermediate: int = 128


def make_model(folder: Path, shape: Shape | None = None, weights: bool = False, seed: int = 0) -> Path:
    """Write config, tokenizer and, if asked, random weights (bfloat16) to a folder; returns the folder."""
    from transformers import LlamaConfig

    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    beginning, end = make_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=beginning,
        eos_token_id=end,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    if weights:
        import torch
        from transformers import LlamaForCausalLM

        torch.manual_seed(seed)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> tuple[int, int]:
    """A token a byte. Returns the tokens that begin and end a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    names += [f"<unused{index}>" for index in range(VOCABULARY - len(names))]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ).save_pretrained(folder)
    return vocabulary["<s>"], vocabulary["</s>"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", action="store_true", help="random weights too")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    for name, default in vars(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="default: %(default)s")
    options = vars(parser.parse_args(arguments))
    shape = Shape(**{name: options[name] for name in vars(Shape())})
    print(make_model(options["folder"], shape, options["weights"], options["seed"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
