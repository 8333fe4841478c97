"""Compares encode with transformers, in float32: small models of every family with random weights, all rows
after every layer, attention maps, and the pooled vectors, for texts of many lengths in one batch.

    encoders.py ENCODE FOLDER [WORD ...]     only the models whose names hold a word, if there are any
    encoders.py --time ENCODE FOLDER         tokens a second of models of real sizes, by turns, one thread
"""

import os
import pathlib
import re
import subprocess
import sys
import time

import torch
import transformers as hf

import families

BOUND = 1e-5  # of the largest value of a layer

SMALL = dict(vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
             intermediate_size=100, max_position_embeddings=90)
DISTIL = dict(vocab_size=97, dim=48, n_layers=3, n_heads=4, hidden_dim=100, max_position_embeddings=90)
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0, layer_norm_eps=1e-7)
V3 = dict(DEBERTA, position_buckets=8, max_relative_positions=40, share_att_key=True, norm_rel_ebd="layer_norm",
          position_biased_input=False)

# name: class of the configuration, what it changes
MODELS = {
    "bert": (hf.BertConfig, SMALL),
    "bert-odd": (hf.BertConfig, dict(SMALL, hidden_size=39, num_attention_heads=3, intermediate_size=61,
                                     hidden_act="relu", layer_norm_eps=1e-3)),
    "minilm": (hf.BertConfig, dict(SMALL, hidden_size=96, num_hidden_layers=6, num_attention_heads=12)),
    "roberta": (hf.RobertaConfig, dict(SMALL, layer_norm_eps=1e-5, type_vocab_size=1)),
    "xlm-roberta": (hf.XLMRobertaConfig, dict(SMALL, layer_norm_eps=1e-5, type_vocab_size=1)),
    "distilbert": (hf.DistilBertConfig, DISTIL),
    "albert": (hf.AlbertConfig, dict(SMALL, embedding_size=20)),
    "albert-groups": (hf.AlbertConfig, dict(SMALL, embedding_size=60, num_hidden_layers=6, num_hidden_groups=4,
                                            inner_group_num=2, hidden_act="gelu")),
    "modernbert": (hf.ModernBertConfig, dict(SMALL, num_hidden_layers=7, local_attention=8, pad_token_id=0,
                                             bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)),
    "modernbert-biases": (hf.ModernBertConfig, dict(
        SMALL, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        attention_bias=True, mlp_bias=True, norm_bias=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "deberta-v2": (hf.DebertaV2Config, dict(SMALL, **dict(DEBERTA, type_vocab_size=2))),
    "deberta-v2-c2p": (hf.DebertaV2Config, dict(SMALL, **dict(
        DEBERTA, pos_att_type=["c2p"], position_buckets=10, max_relative_positions=20, embedding_size=30))),
    "deberta-v2-plain": (hf.DebertaV2Config, dict(SMALL, relative_attention=False)),
    "deberta-v3": (hf.DebertaV2Config, dict(SMALL, **V3)),
    "deberta-v3-wide": (hf.DebertaV2Config, dict(SMALL, **dict(V3, position_buckets=256, max_position_embeddings=512,
                                                               max_relative_positions=512))),
    "roberta-types": (hf.RobertaConfig, dict(SMALL, type_vocab_size=2)),
    "xlm-roberta-types": (hf.XLMRobertaConfig, dict(SMALL, type_vocab_size=2)),
    "deberta-v3-types": (hf.DebertaV2Config, dict(SMALL, **dict(V3, type_vocab_size=2))),
    # as they are by default, with config.json silent about that
    "bert-defaults": (hf.BertConfig, SMALL),
    "roberta-defaults": (hf.RobertaConfig, SMALL),
    "xlm-roberta-defaults": (hf.XLMRobertaConfig, SMALL),
    "distilbert-defaults": (hf.DistilBertConfig, DISTIL),
    "albert-defaults": (hf.AlbertConfig, SMALL),
    "modernbert-defaults": (hf.ModernBertConfig, dict(SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                                      cls_token_id=1, sep_token_id=2)),
    "deberta-v2-defaults": (hf.DebertaV2Config, SMALL),
}


def make(name, folder, dtype=torch.float32):
    kind, changes = MODELS[name]
    torch.manual_seed(len(name) + sum(map(ord, name)))
    config = kind(**changes)
    config._attn_implementation = "eager"
    model = hf.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # initial weights are small and their biases 0: nothing would show in them
        for part, weight in model.named_parameters():
            if part.endswith("bias") or "embedding" in part.lower():
                weight.normal_(0, 0.3)
            elif "norm" in part.lower():
                weight.normal_(1, 0.2)
            else:
                weight.normal_(0, 1.5 / weight.shape[-1] ** 0.5)
    model.to(dtype).save_pretrained(folder)
    if name.endswith("-defaults"):
        families.leave_out(folder / "config.json", kind)
    return model.to(torch.float32)


def texts_of(model):
    """Lengths from 1 to the longest, two token types where a model has them, padding tokens within RoBERTa's."""
    config = model.config
    most = config.max_position_embeddings - (2 if "roberta" in config.model_type else 0)
    types = getattr(config, "type_vocab_size", 0) > 1
    draw = torch.Generator().manual_seed(7)
    texts = []
    for n in (5, 1, most, 33, 64):
        ids = torch.randint(3, config.vocab_size, (n,), generator=draw).tolist()
        if "roberta" in config.model_type and n == 33:
            ids[10] = ids[11] = config.pad_token_id
        texts.append((ids, n // 3 if types and n > 3 else n))
    return texts


def reference(model, texts):
    rows, maps = [], []
    for ids, second in texts:
        arguments = dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
        if second < len(ids):
            arguments["token_type_ids"] = torch.tensor([[int(i >= second) for i in range(len(ids))]])
        with torch.no_grad():
            out = model(**arguments, output_hidden_states=True, output_attentions=True)
        states = list(out.hidden_states)
        states[-1] = out.last_hidden_state
        rows.append([state[0] for state in states])
        maps.append([a[0] for a in out.attentions])
    return rows, maps


def run(encode, folder, texts, *options):
    lines = [" ".join(map(str, ids[:second] + (["|"] if second < len(ids) else []) + ids[second:]))
             for ids, second in texts]
    out = subprocess.run([encode, "--ids", "--max", "100000", *options, str(folder), *lines], capture_output=True,
                         text=True)
    if out.returncode:
        sys.exit(f"{folder}: {out.stderr.strip()}")
    found = {}
    for line in out.stdout.splitlines():
        word, *numbers = line.split()
        if word in ("row", "map", "vector"):
            found[word, *map(int, numbers[:3])] = torch.tensor([float(x) for x in numbers[3:]])
    return found


def pooled(row, how):
    vector = dict(mean=row.mean(0), cls=row[0], max=row.max(0).values)[how]
    return vector / vector.norm()


def check(encode, folder, name, dtype=torch.float32):
    model = make(name, folder, dtype)
    texts = texts_of(model)
    rows, maps = reference(model, texts)
    layers = len(rows[0])
    found = run(encode, folder, texts, "--layers")
    worst = 0.0
    for layer in range(layers):
        largest = max(rows[b][layer].abs().max() for b in range(len(texts)))
        for b, (ids, _) in enumerate(texts):
            mine = torch.stack([found["row", b, layer, i] for i in range(len(ids))])
            worst = max(worst, float((mine - rows[b][layer]).abs().max() / largest))
    if ("row", 0, layers, 0) in found:
        sys.exit(f"{name}: there are more layers than transformers has")
    vector = 0.0
    for how in ("mean", "cls", "max"):
        found = run(encode, folder, texts, "--pool", how, "--vectors")
        for b in range(len(texts)):
            want = pooled(rows[b][-1], how)
            vector = max(vector, float((found["vector", b, 0, 0] - want).abs().max() / want.abs().max()))
    seen = 0.0
    for layer in range(len(maps[0])):
        found = run(encode, folder, texts, "--map", str(layer + 1))
        for b, (ids, _) in enumerate(texts):
            for head in range(maps[b][layer].shape[0]):
                mine = torch.stack([found["map", b, head, i] for i in range(len(ids))])
                seen = max(seen, float((mine - maps[b][layer][head]).abs().max()))
    verdict = "ok" if max(worst, vector, seen) <= BOUND else "FAILED"
    print(f"{name:20} {str(dtype)[6:]:9} {layers - 1} layers: rows {worst:.1e}, vectors {vector:.1e}, maps {seen:.1e}"
          f"  {verdict}", flush=True)
    return verdict == "ok"


# 8 texts of 128 tokens, as encode --time has them
SIZES = {
    "MiniLM-L6": hf.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    "BERT-base": hf.BertConfig(),
    "ModernBERT-base": hf.ModernBertConfig(),
    "DeBERTa-v3-base": hf.DebertaV2Config(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        **dict(DEBERTA, position_buckets=256, share_att_key=True, norm_rel_ebd="layer_norm",
               position_biased_input=False)),
}


def clock(call, seconds=3):
    """The least time of a call."""
    best, until = float("inf"), time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        call()
        best = min(best, time.monotonic() - begun)
    return best


def measure(encode, folder):
    ids = torch.arange(8 * 128).reshape(8, 128) * 7919 % 30522
    for name, config in SIZES.items():
        torch.manual_seed(0)
        peers = {}
        for kind in ("eager", "sdpa"):
            if kind == "sdpa" and config.model_type == "deberta-v2":  # transformers has none
                continue
            peers[f"f32 {kind}"] = hf.AutoModel.from_config(config, attn_implementation=kind).eval()
        if name == "MiniLM-L6":  # without instructions for it, minutes a call of the others
            peers["bf16 sdpa"] = hf.AutoModel.from_config(config, attn_implementation="sdpa").eval().to(torch.bfloat16)
        peers["f32 eager"].save_pretrained(folder / name)
        best = {}
        for _ in range(3):
            out = subprocess.run([encode, "--time", str(folder / name)], capture_output=True, text=True, check=True,
                                 env=dict(os.environ, OMP_NUM_THREADS="1")).stdout
            tier, rate = re.findall(r"^(\w+) +(\d+) tokens/s", out, re.M)[-1]
            best[f"encode {tier}"] = max(best.get(f"encode {tier}", 0), int(rate))
            with torch.no_grad():
                for peer, model in peers.items():
                    best[peer] = max(best.get(peer, 0), 8 * 128 / clock(lambda: model(input_ids=ids)))
        print(name, ", ".join(f"{what} {rate:.0f}" for what, rate in best.items()), "tokens/s", flush=True)


def main():
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    if sys.argv[1] == "--time":
        return measure(sys.argv[2], pathlib.Path(sys.argv[3]))
    encode, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    names = [n for n in MODELS if len(sys.argv) < 4 or any(word in n for word in sys.argv[3:])]
    fine = [check(encode, folder / name, name) for name in names]
    fine += [check(encode, folder / f"{name}-{dtype}", name, getattr(torch, dtype))
             for dtype in ("bfloat16", "float16") for name in names if name in ("bert", "albert", "deberta-v3")]
    if not all(fine) or not fine:
        sys.exit("encoders: FAILED")
    print(f"encoders: all {len(fine)} models agree with transformers {hf.__version__} within {BOUND} of the largest value")


main()
