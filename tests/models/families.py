"""families.py owns the tiny models that models.py checks generate with: for each family of docs/examples/model_config.h
configurations that differ in what the program must know (grouped heads, tied embeddings, biases, windows shorter than the
text, soft-caps, scaled rotary frequencies, norms of queries and keys, pieces, types). All numbers are random, from seeds."""

import json
import os

import torch
import transformers as t

BASE = dict(vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32, rope_theta=500000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)
LINEAR = dict(rope_type="linear", factor=2.0, rope_theta=10000.0)

# name, class of the configuration, what differs, how it is saved
MODELS = [
    ("llama", t.LlamaConfig, dict(), {}),
    ("llama-tied-biased", t.LlamaConfig, dict(tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                                              num_key_value_heads=6, rms_norm_eps=1e-3), {}),
    ("llama3-rope-head", t.LlamaConfig, dict(rope_parameters=LLAMA3, head_dim=10, num_key_value_heads=1), {}),
    ("llama-yarn-bf16", t.LlamaConfig, dict(rope_parameters=YARN, num_hidden_layers=2), dict(dtype=torch.bfloat16)),
    ("llama-yarn-whole", t.LlamaConfig, dict(rope_parameters=dict(YARN, truncate=False, attention_factor=1.2)), {}),
    ("llama-linear-pieces", t.LlamaConfig, dict(rope_parameters=LINEAR), dict(max_shard_size="60KB")),
    ("llama-f16-old-form", t.LlamaConfig, dict(rope_parameters=LLAMA3), dict(dtype=torch.float16, old=True)),
    ("mistral-window", t.MistralConfig, dict(sliding_window=11), {}),
    ("mistral-full", t.MistralConfig, dict(sliding_window=None, head_dim=16), {}),
    ("qwen2", t.Qwen2Config, dict(tie_word_embeddings=True), {}),
    ("qwen2-late-window", t.Qwen2Config, dict(use_sliding_window=True, sliding_window=7, max_window_layers=1), {}),
    ("qwen3", t.Qwen3Config, dict(head_dim=12, rms_norm_eps=1e-4), {}),
    ("qwen3-tied-bf16", t.Qwen3Config, dict(head_dim=16, tie_word_embeddings=True), dict(dtype=torch.bfloat16)),
    ("gemma2", t.Gemma2Config, dict(head_dim=16, sliding_window=9, query_pre_attn_scalar=20, num_hidden_layers=4,
                                    attn_logit_softcapping=2.0, final_logit_softcapping=3.0), {}),
    ("gemma2-plain", t.Gemma2Config, dict(head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=None), {}),
    ("gemma3", t.Gemma3TextConfig, dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=24, num_hidden_layers=7), {}),
    ("gemma3-old-form", t.Gemma3TextConfig, dict(head_dim=16, sliding_window=8, num_hidden_layers=7, rope_parameters={
        "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
        "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}), dict(old=True, max_shard_size="50KB")),
    ("mixtral", t.MixtralConfig, dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=12), {}),
    ("qwen3-moe", t.Qwen3MoeConfig, dict(head_dim=12, num_experts=6, moe_intermediate_size=40, num_experts_per_tok=3,
                                         norm_topk_prob=True, mlp_only_layers=[1]), {}),
    ("qwen3-moe-bf16", t.Qwen3MoeConfig, dict(head_dim=8, num_experts=9, moe_intermediate_size=36, num_experts_per_tok=4,
                                              norm_topk_prob=False, use_sliding_window=True, sliding_window=10), dict(dtype=torch.bfloat16)),
    ("gpt-oss", t.GptOssConfig, dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=9,
                                     rope_parameters=dict(YARN, truncate=False, rope_theta=150000.0)), {}),
    ("gpt-oss-bf16-pieces", t.GptOssConfig, dict(head_dim=8, num_local_experts=7, num_experts_per_tok=3, sliding_window=20,
                                                 num_hidden_layers=4), dict(dtype=torch.bfloat16, max_shard_size="100KB")),
    ("mamba2", t.Mamba2Config, dict(num_heads=8, head_dim=12, state_size=16, n_groups=2, expand=2, conv_kernel=4,
                                    chunk_size=16), {}),
    ("mamba2-limited-bf16", t.Mamba2Config, dict(num_heads=4, head_dim=24, state_size=8, n_groups=1, expand=2, conv_kernel=3,
                                                 chunk_size=32, use_conv_bias=False, use_bias=True, tie_word_embeddings=True,
                                                 time_step_limit=(0.01, 0.8)), dict(dtype=torch.bfloat16)),
]
# one of each type as it is by default, with config.json silent about that; sizes are said
HEADS = dict(head_dim=16)
MODELS += [(name + "-defaults", Config, differs, dict(absent=True)) for name, Config, differs in (
    ("llama", t.LlamaConfig, dict()), ("mistral", t.MistralConfig, dict()), ("mixtral", t.MixtralConfig, dict(num_local_experts=5, num_experts_per_tok=3)),
    ("qwen2", t.Qwen2Config, dict()), ("qwen3", t.Qwen3Config, HEADS),
    ("qwen3-moe", t.Qwen3MoeConfig, dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40)),
    ("gemma2", t.Gemma2Config, HEADS), ("gemma3", t.Gemma3TextConfig, HEADS),
    ("gpt-oss", t.GptOssConfig, dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, rope_parameters=YARN)),
    ("mamba2", t.Mamba2Config, dict(num_heads=8, head_dim=12, state_size=16)))]


def spread(model):
    """Random numbers of sizes at which every part matters: gains differ, scores are no noise."""
    for name, p in model.named_parameters():
        with torch.no_grad():
            if name.endswith("A_log"):
                p.uniform_(-1, 1.5)
            elif name.endswith("dt_bias"):
                p.uniform_(-3, 0.5)
            elif "gate_up_proj_bias" in name:  # some gates reach their limit
                p.normal_(0, 4)
            elif p.dim() == 1 or name.endswith("_bias"):  # gains and biases
                gemma = "gemma" in model.config.model_type
                middle = 1.0 if (("norm" in name and not gemma) or name.endswith(".D")) else 0.0
                p.uniform_(-0.5, 0.5).add_(middle)
            elif "embed" in name:
                p.normal_(0, 1.0 if model.config.model_type != "gemma2" and "gemma3" not in model.config.model_type else 0.15)
            elif "conv1d" in name:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1.5 / p.shape[-1] ** 0.5)


def leave_out(path, Config):
    """config.json without the fields that have the default of their class."""
    with open(path) as f:
        c = json.load(f)
    usual = json.loads(Config().to_json_string(use_diff=False))
    with open(path, "w") as f:
        json.dump({k: v for k, v in c.items() if k == "model_type" or k not in usual or v != usual[k]}, f)


def old_form(path):
    """config.json as version 4 of transformers has it."""
    with open(path) as f:
        c = json.load(f)
    rope = c.pop("rope_parameters")
    if "full_attention" in rope:
        c["rope_theta"] = rope["full_attention"].pop("rope_theta")
        c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        c["sliding_window_pattern"] = 6
        del c["layer_types"]
    else:
        c["rope_theta"] = rope.pop("rope_theta")
    c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    with open(path, "w") as f:
        json.dump(c, f)


def build(config, folder, seed=1, **save):
    """Writes a random model; returns it as transformers reads it again, in f32."""
    torch.manual_seed(seed)
    dtype, old, absent = save.pop("dtype", torch.float32), save.pop("old", False), save.pop("absent", False)
    model = t.AutoModelForCausalLM.from_config(config)
    spread(model)
    if model.config.tie_word_embeddings:
        model.tie_weights()
    model.to(dtype).save_pretrained(folder, safe_serialization=True, **save)
    model = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager") \
        if config.model_type != "mamba2" else t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if old:
        old_form(os.path.join(folder, "config.json"))
    if absent:
        leave_out(os.path.join(folder, "config.json"), type(config))
    return model.eval()


def make(entry, folder):
    name, Config, differs, save = entry
    os.makedirs(folder, exist_ok=True)
    return build(Config(**dict(BASE, **differs)), folder, **dict(save))
