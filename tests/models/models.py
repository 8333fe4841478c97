"""models.py owns the check of generate against transformers: models.py GENERATE FOLDER. Of each model of families.py the
logits of every token, of the prompt and of the made ones, whatever pieces it goes in, must be those of one pass of
transformers in f32; each made token must be the likeliest there; and drafts and neighbours must change no token. Texts
by a tokenizer.json are those of the tokenizers package."""

import logging
import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

import families  # noqa: E402

BOUND = 1e-4  # of the largest logit
PROMPT, MADE = 50, 40
CODES = {"int8": (127, 128), "int4": (7, 32)}  # the largest code, inputs that share a scale
failures = 0


def check(good, *what):
    global failures
    if not good:
        failures += 1
        print("FAILED:", *what, flush=True)


def generate(*words):
    """Lines of tokens, or None after a failure."""
    run = subprocess.run([sys.argv[1], "--ids", "--no-eos", *map(str, words)], capture_output=True, text=True)
    check(run.returncode == 0, *words, run.stderr.strip())
    return [[int(i) for i in line.split()] for line in run.stdout.splitlines()] if run.returncode == 0 else None


def error(got, expected):
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def check_model(entry, folder):
    name = entry[0]
    model = families.make(entry, folder)
    prompt = torch.randint(0, model.config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(7)).tolist()
    words = " ".join(map(str, prompt))
    worst, close, path = 0.0, 0, folder + "/logits"
    first = expected = None
    for piece in (1, 20, 512):
        lines = generate("--tokens", MADE, "--piece", piece, "--logits", path, folder, words)
        if lines is None:
            return
        made = lines[0]
        check(len(made) == MADE, name, "made", len(made), "tokens")
        if first != made:  # one pass says what each token must be behind those before it
            with torch.no_grad():
                expected = model(torch.tensor([prompt + made[:-1]])).logits[0].double().numpy()
        first = made
        logits = np.fromfile(path, np.float32).reshape(-1, expected.shape[1])
        check(logits.shape == expected.shape, name, "logits", logits.shape)
        worst = max(worst, error(logits, expected))
        for i, token in enumerate(made):
            row = expected[PROMPT - 1 + i]
            likeliest = int(row.argmax())
            if token != likeliest:  # allowed where the two are nearer than rounding
                close += 1
                check(row[likeliest] - row[token] < BOUND * np.abs(expected).max(), name, "token", i, "is", token,
                      "and not", likeliest)
    os.remove(path)
    check(worst < BOUND, name, "error %.1e" % worst)
    print("%-22s error %.1e of %.1f%s" % (name, worst, np.abs(expected).max(), ", %d ties" % close if close else ""), flush=True)
    return words, first


def check_texts(name, folder, words, made, drafter):
    """Beside others, and with drafts, the text is what it is alone."""
    texts = [words, "3 4", " ".join(words.split()[:17])]
    alone = [made] + [generate("--tokens", MADE, folder, text)[0] for text in texts[1:]]
    check(generate("--tokens", MADE, "--batch", 2, folder, *texts) == alone, name, "beside others")
    if drafter:
        for draft in (folder, drafter):
            for width in (1, 3):
                got = generate("--tokens", MADE, "--draft", draft, "--draft-width", width, folder, *texts)
                check(got == alone, name, "drafts of", draft, "width", width)
        # what is drawn is often the second or third of a draft: a leaf that stays, and moves
        drawn = ("--tokens", MADE, "--temperature", 1, "--top-k", 4, folder, *texts)
        check(generate("--draft", folder, "--draft-width", 3, *drawn) == generate(*drawn), name, "drafts of drawn texts")


def coarse(w, most, group):
    """Rows of w as codes with a scale for each group stand for them: attn_quantize."""
    for first in range(0, w.shape[1], group):
        part = w[:, first:first + group]
        size = np.abs(part).max(axis=1, keepdims=True)
        scale = (size / most).astype(np.float32)
        scale = np.where(scale.astype(np.float64) * most < size, np.nextafter(scale, np.float32(np.inf)), scale)
        scale = np.where(size == 0, 1, scale).astype(np.float64)
        w[:, first:first + group] = np.clip(np.round(part / scale), -most - 1, most) * scale
    return w


def check_weights(entry, folder, words):
    """Weights of fewer bits are those of a model whose weights are what the codes stand for."""
    path = folder + "/logits"
    for kind, (most, group) in CODES.items():
        model = families.make(entry, folder)
        for name, p in model.named_parameters():
            if p.dim() == 2 and "embed" not in name:
                with torch.no_grad():
                    p.copy_(torch.tensor(coarse(p.double().numpy(), most, group)))
        with torch.no_grad():
            expected = model(torch.tensor([[int(i) for i in words.split()]])).logits[0].double().numpy()
        generate("--tokens", 1, "--weights", kind, "--logits", path, folder, words)
        worst = error(np.fromfile(path, np.float32).reshape(expected.shape), expected)
        check(worst < BOUND, kind, "weights: error", worst)
        print("%-22s error %.1e, with %s weights" % (entry[0], worst, kind), flush=True)
    os.remove(path)


TEXTS = ["Once upon a time", "attention of 128 heads, 3.5 times", "caf\u00e9 \u4e2d\u6587 \U0001f642 it's  two  spaces\n", " x", "<s>y<end> z"]


def check_tokenizer(folder):
    """Prompts and what is made are text, by byte pairs with and without digits apart and a mark before."""
    pages = [str(p) for p in sorted(pathlib.Path(__file__).parent.parent.parent.glob("docs/*.md"))]
    families.build(transformers.LlamaConfig(**dict(families.BASE, vocab_size=700)), folder)
    for digits, mark in ((True, False), (False, True), (False, False), (True, True)):
        tok = Tokenizer(models.BPE())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level]) if digits else level
        tok.decoder = decoders.ByteLevel()
        tok.train(pages, trainers.BpeTrainer(vocab_size=680, special_tokens=["<s>", "<end>"], show_progress=False,
                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if mark:
            tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        tok.save(os.path.join(folder, "tokenizer.json"))
        for text in TEXTS:
            ids = tok.encode(text).ids
            made = generate("--tokens", MADE, folder, " ".join(map(str, ids)))[0]
            run = subprocess.run([sys.argv[1], "--no-eos", "--tokens", str(MADE), folder, text], capture_output=True)
            got = run.stdout.decode(errors="replace")
            want = tok.decode([i for i in made if i < tok.get_vocab_size()], skip_special_tokens=False)
            check(run.returncode == 0 and got == want + "\n", "text", repr(text), repr(got), repr(want), run.stderr)
    print("%-22s %d texts by 4 tokenisers" % ("text of llama", len(TEXTS) * 4), flush=True)


def main():
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    only = sys.argv[3:]
    drafter = None
    for entry in families.MODELS:
        if only and entry[0] not in only:
            continue
        folder = os.path.join(sys.argv[2], entry[0])
        done = check_model(entry, folder)
        if done is None:
            continue
        drafter = drafter or folder
        check_texts(entry[0], folder, *done, drafter if "mamba" not in entry[0] else None)
        if entry[0] == "llama":
            check_weights(entry, folder, done[0])
    if not only or "tokenizer" in only:
        check_tokenizer(os.path.join(sys.argv[2], "tokenizer"))
    print("models: %s" % ("all passed" if not failures else "%d FAILED" % failures))
    return failures != 0


sys.exit(main())
