"""training.py owns the check of train against PyTorch: training.py TRAIN FOLDER. Of tiny models of random numbers every
gradient of the first batch must be that of transformers in f64, and over 50 steps from the same weights and batches the
losses must be those of PyTorch's AdamW.

    training.py --time TRAIN FOLDER WORKERS TEXT ...         losses and tokens a second of the model that train begins with
    training.py --plot PICTURE TRAIN FOLDER WORKERS TEXT ... the losses of all its steps, by both (wants matplotlib)"""

import logging
import math
import os
import subprocess
import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")
import safetensors.torch as st  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import families  # noqa: E402

STEPS = 50
GRADIENT, LOSS = 1e-4, 1e-3  # of the largest number of a weight's gradient; of a loss
PIECE, EVERY = 2048, 16  # corpus.h
GOLD, ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1
failures = 0


def check(good, *what):
    global failures
    if not good:
        failures += 1
        print("FAILED:", *what, flush=True)


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & ALL
    z = (z ^ z >> 27) * 0x94D049BB133111EB & ALL
    return z ^ z >> 31


def below(seed, n, most):
    """attn_random_below of stream 0."""
    return (mix((mix((seed + GOLD) & ALL) + GOLD * (n + 1)) & ALL) * most) >> 64


def learned(paths):
    """The bytes to learn from, as corpus.h divides them."""
    text = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    piece = len(text) // EVERY + 1 if len(text) // EVERY < PIECE else PIECE
    return text[np.arange(len(text)) // piece % EVERY != EVERY - 1].astype(np.int64)


def batch(text, seed, step, sequences, length):
    """Tokens and targets of a step."""
    at = [below(seed, step * sequences + b, len(text) - length) for b in range(sequences)]
    rows = torch.tensor(np.stack([text[i:i + length + 1] for i in at]))
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, tokens, targets):
    logits = model(tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rate(most, steps, step):
    warm = math.ceil(steps / 20)
    if step < warm:
        return most * step / warm
    return most * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm + 1))))


def learn(model, text, steps, stop, most, sequences, length):
    """Losses of the steps, and their seconds."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                                  betas=(0.9, 0.95), eps=1e-8)
    losses, seconds = [], []
    for step in range(1, stop + 1):
        begin = time.perf_counter()
        for group in optimiser.param_groups:
            group["lr"] = rate(most, steps, step)
        loss = loss_of(model, *batch(text, 0, step, sequences, length))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def train(program, *words):
    run = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    check(run.returncode == 0, "train", *words, run.stderr.strip())
    return run.stdout


def checkpoint(folder):
    return st.load_file(os.path.join(folder, "checkpoint.safetensors"))["learned"].numpy()


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")


def check_gradients(program, entry, folder, out, path):
    families.make((entry[0], entry[1], dict(entry[2], vocab_size=256), entry[3]), folder)
    train(program, "--from", folder, "--batch", 3, "--length", 40, "--gradients", out, path)
    got = st.load_file(os.path.join(out, "gradients.safetensors"))
    model = load(out, torch.float64)
    loss_of(model, *batch(learned([path]), 0, 1, 3, 40)).backward()
    worst = 0.0
    for name, p in model.named_parameters():
        check(name in got, entry[0], "has no gradient of", name)
        if name not in got:
            continue
        error = float((got.pop(name).double() - p.grad).abs().max() / p.grad.abs().max())
        # a bias of keys shifts all scores of a row, which changes nothing
        if name.endswith("k_proj.bias") and p.grad.abs().max() < 1e-2 * model.model.layers[0].self_attn.q_proj.bias.grad.abs().max():
            continue
        check(error < GRADIENT, entry[0], name, "error %.1e" % error)
        worst = max(worst, error)
    check(not got, entry[0], "has gradients of", list(got))
    print("%-22s gradients: error %.1e" % (entry[0], worst), flush=True)


def check_losses(program, folder, out, path):
    """The weights are those of the last model that was checked."""
    words = ("--batch", 4, "--length", 64, "--steps", STEPS, "--every", STEPS, "--rate", 0.005, "--write", 0)
    train(program, "--from", folder, *words, out, path)
    expected, _ = learn(load(folder, torch.float32), learned([path]), STEPS, STEPS, 0.005, 4, 64)
    error = np.abs(checkpoint(out) / np.array(expected) - 1).max()
    check(error < LOSS, "losses: error %.1e" % error)
    print("%d steps: loss %.3f to %.3f, error %.1e" % (STEPS, expected[0], expected[-1], error), flush=True)


def measure(program, out, workers, texts):
    """The model that train begins with, at its own settings: the same steps by both."""
    torch.set_num_threads(int(workers))
    sizes = ("--workers", workers, "--write", 0, "--every", 1000)
    train(program, *sizes, "--gradients", out, *texts)
    model = load(out, torch.float32)
    begin = time.perf_counter()
    train(program, *sizes, "--steps", 640, "--stop", 5, out, *texts)
    between = time.perf_counter()
    train(program, *sizes, "--steps", 640, "--stop", 5 + STEPS, out, *texts)
    end = time.perf_counter()
    ours = STEPS * 2048 / ((end - between) - (between - begin))
    losses, seconds = learn(model, learned(texts), 640, 5 + STEPS, 0.003, 8, 256)
    theirs = 2048 / float(np.median(seconds[5:]))
    error = np.abs(checkpoint(out)[:STEPS] / np.array(losses[:STEPS]) - 1).max()
    print("loss of step 1, 10, .. %d: %s; train's are within %.1e" % (
        STEPS, " ".join("%.4f" % losses[i - 1] for i in (1, *range(10, STEPS + 1, 10))), error))
    print("tokens a second, %s threads: %.0f by train, %.0f by PyTorch %s: %.2f x" % (
        workers, ours, theirs, torch.__version__, ours / theirs))


def plot(picture, program, out, workers, texts):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    torch.set_num_threads(int(workers))
    train(program, "--workers", workers, "--gradients", out, *texts)
    losses, _ = learn(load(out, torch.float32), learned(texts), 640, 640, 0.003, 8, 256)
    train(program, "--workers", workers, "--write", 0, out, *texts)
    ours = checkpoint(out)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7.2, 5), height_ratios=(3, 1))
    above.plot(range(1, 641), losses, color="#c8501e", lw=2.5, label="PyTorch")
    above.plot(range(1, 641), ours, color="#1f5fb4", lw=0.8, label="attn.h")
    above.set_ylabel("loss, nats a byte")
    above.legend(frameon=False)
    below.semilogy(range(1, 641), np.abs(ours / np.array(losses) - 1) + 1e-9, color="#555", lw=0.8)
    below.set_ylabel("difference")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main():
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1] == "--time":
        measure(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
        return 0
    if sys.argv[1] == "--plot":
        plot(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6:])
        return 0
    program, folder = sys.argv[1:3]
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "text")
    with open(path, "w") as f:
        f.write(" ".join("%d squared is %d;" % (i, i * i) for i in range(400)))
    for entry in families.MODELS:
        if entry[0].startswith(("llama", "mistral", "qwen2")):
            check_gradients(program, entry, os.path.join(folder, entry[0]), os.path.join(folder, "out"), path)
    check_losses(program, os.path.join(folder, "llama"), os.path.join(folder, "out"), path)
    print("training: %s" % ("all passed" if not failures else "%d FAILED" % failures))
    return failures != 0


sys.exit(main())
