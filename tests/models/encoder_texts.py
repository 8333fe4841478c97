"""Compares what encode makes of texts with the tokenizers and sentencepiece packages. Vocabularies are trained on
the project's own pages; texts are pieces of these, mixtures of spaces, marks, clitics, accents and scripts, and random
characters.

    encoder_texts.py ENCODE FOLDER
"""

import pathlib
import random
import subprocess
import sys
import unicodedata

import sentencepiece
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = [str(p) for p in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/examples/*.md")])]
SIZES = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


def texts(unicode_limit):
    """Characters beyond the limit are those whose properties changed between the versions of Unicode."""
    draw = random.Random(1)
    pages = "".join(pathlib.Path(p).read_text() for p in PAGES)
    odd = [*"abc XYZ 019 '’`.,;!?-_—é ü ß Ω ж 中文 ² ½ Ⅷ 🙂 ﬁ Ａ１ ｶﾞ 각 한", "\t", "\n", "\u00a0", "\u2003", "\u3000", "\u0085",
           "\u000b", "\u0301", "\u200d", "'s", "'re", "'ll", "don't", "``", "''", "<mask>", "</s>", "[CLS]", "[MASK]", "@@@",
           "  ", "    ", "\n\n", "e\u0308\u0301", "a\u0323\u0302", "\u1100\u1161\u11a8", "▁", "<x>"]
    found = []
    for _ in range(400):
        at = draw.randrange(len(pages))
        found.append(pages[at:at + draw.randrange(1, 300)])
    for _ in range(1000):
        found.append("".join(draw.choice(odd) for _ in range(draw.randrange(1, 40))))
    for _ in range(300):
        ranges = [(32, 0x300), (0x300, 0x1000), (0x1000, 0x3000), (0x4E00, 0xD000), (0xF900, 0xFFFE)]
        points = [draw.randrange(*draw.choice(ranges)) for _ in range(draw.randrange(1, 30))]
        found.append("".join(map(chr, points)))
    known = [t for t in found if unicode_limit is None or all(unicode_limit(c) for c in t)]
    return known + ["", " ", "\n", "a" * 20000, "ab" * 5000, " " * 500 + "x"]


def run(encode, folder, lines, *options):
    """The printed tokens of each text, or of each two."""
    shown = []
    for at in range(0, len(lines), 200):
        out = subprocess.run([encode, "--tokens", "--max", "1000000", *options, str(folder), *lines[at:at + 200]],
                             capture_output=True)
        if out.returncode:
            sys.exit(f"{folder}: {out.stderr.decode().strip()}")
        shown += [line.split(" ", 2)[2] for line in out.stdout.decode().split("\n")[:-1]]
    return shown


def check(name, encode, folder, want, pair, lines, ends=1, scores=None):
    """want(a) and pair(a, b) are lists of pieces; encode shows a bar where the second text begins. With scores, ways
    to cut a text that score the same are the same: which of them is taken is the package's own."""
    def differs(got, wanted):
        if not scores or got == " ".join(wanted):
            return got != " ".join(wanted)
        got = got.split(" ")
        apart = sum(scores.get(p, 0) for p in got) - sum(scores.get(p, 0) for p in wanted)
        return "".join(got) != "".join(wanted) or abs(apart) > 1e-3

    found = run(encode, folder, lines)
    wrong = [(t, g, w) for t, g, w in zip(lines, found, map(want, lines)) if differs(g, w)]
    twos = [(a, b) for a, b in zip(lines[::2], lines[1::2])]
    found = run(encode, folder, [t for two in twos for t in two], "--pairs")
    for (a, b), got in zip(twos, found):
        both, first = pair(a, b), len(want(a)) + ends - 1
        both.insert(first, "|")
        if differs(got, both):
            wrong.append(((a, b), got, both))
    for text, got, wanted in wrong[:3]:
        print(f"  {str(text)[:100]!r}\n    encode   {got[:200]!r}\n    expected {' '.join(wanted)[:200]!r}")
    print(f"{name:28} {len(lines)} texts and {len(twos)} pairs, {len(wrong)} differ  {'FAILED' if wrong else 'ok'}",
          flush=True)
    return not wrong


def pieces(tok):
    """Of a text and of a pair; an added token by its name, not with the white space that it took."""
    return (lambda a: [tok.id_to_token(i) for i in tok.encode(a).ids],
            lambda a, b: [tok.id_to_token(i) for i in tok.encode(a, b).ids])


def model(folder, kind, vocabulary):
    torch.manual_seed(0)
    most = dict(max_position_embeddings=32768) if kind is not hf.RobertaConfig else dict(max_position_embeddings=32770)
    if kind is hf.ModernBertConfig:
        most.update(pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
    hf.AutoModel.from_config(kind(vocab_size=vocabulary, **SIZES, **most)).save_pretrained(folder)


def byte_pairs(encode, folder, space_first, normaliser, kind):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space_first)
    if normaliser:
        tok.normalizer = normaliser
    names = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    tok.train(PAGES, trainers.BpeTrainer(vocab_size=2000, special_tokens=names, show_progress=False,
                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_tokens([AddedToken("  ", normalized=True), AddedToken("    ", normalized=True),
                    AddedToken("@@@", normalized=False, rstrip=True)])
    if kind is hf.RobertaConfig:
        tok.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, space_first)
    else:
        tok.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)])
    model(folder, kind, tok.get_vocab_size())
    tok.save(str(folder / "tokenizer.json"))
    return check(folder.name, encode, folder, *pieces(tok), texts(None), 2 if kind is hf.RobertaConfig else 1)


def word_pieces(encode, folder, lower):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train(PAGES, trainers.WordPieceTrainer(vocab_size=1500, show_progress=False, special_tokens=[
        "[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    model(folder, hf.BertConfig, tok.get_vocab_size())
    tok.save(str(folder / "tokenizer.json"))
    old = unicodedata.ucd_3_2_0  # what is punctuation has changed since
    lines = texts(lambda c: c != "[" and old.category(c) == unicodedata.category(c) != "Cn")  # names are text to encode
    return check(folder.name, encode, folder, *pieces(tok), lines)


def sentence_pieces(encode, folder, kind, **options):
    folder.mkdir(parents=True, exist_ok=True)
    name = {"albert": "spiece", "deberta-v2": "spm", "xlm-roberta": "sentencepiece.bpe"}[kind.model_type]
    marks = {} if kind.model_type == "xlm-roberta" else dict(control_symbols=["[CLS]", "[SEP]"])
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(PAGES), model_prefix=str(folder / name), vocab_size=1200, minloglevel=2, num_threads=1,
        max_sentence_length=100000, **marks, **options)
    sp = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
    model(folder, kind, sp.get_piece_size() + 2)
    xlm = kind.model_type == "xlm-roberta"
    first, last, between = ("<s>", "</s>", ["</s>", "</s>"]) if xlm else ("[CLS]", "[SEP]", ["[SEP]"])

    def raw(text):
        return [sp.id_to_piece(i) for i in sp.encode(text)]

    return check(folder.name, encode, folder, lambda a: [first, *raw(a), last],
                 lambda a, b: [first, *raw(a), *between, *raw(b), last], texts(None), len(between))


def albert(encode, folder):
    """Against the tokeniser that transformers has for ALBERT, made of the same model."""
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(PAGES), model_prefix=str(folder / "spiece"), vocab_size=1200, minloglevel=2, num_threads=1,
        max_sentence_length=100000, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, normalization_rule_name="nmt_nfkc_cf",
        control_symbols=["[CLS]", "[SEP]"])
    sp = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    vocab = [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.get_piece_size())]
    tok = hf.AlbertTokenizer(vocab=vocab).backend_tokenizer
    model(folder, hf.AlbertConfig, len(vocab))
    plain = texts(lambda c: (c.isascii() and c >= "\t" and c not in "\v[<") or c in "éüßΩж中文")
    return check(folder.name, encode, folder, *pieces(tok), plain, scores=dict(vocab))


def albert_folds(encode, folder):
    """What transformers does to a text before SentencePiece, which here leaves letters as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(PAGES), model_prefix=str(folder / "spiece"), vocab_size=1200, minloglevel=2, num_threads=1,
        max_sentence_length=100000, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, normalization_rule_name="identity",
        control_symbols=["[CLS]", "[SEP]"])
    sp = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    fold = hf.AlbertTokenizer().backend_tokenizer.normalizer
    model(folder, hf.AlbertConfig, sp.get_piece_size())

    def raw(text):  # unknown letters as they are
        return sp.encode(fold.normalize_str(text), out_type=str)

    old = unicodedata.ucd_3_2_0
    stable = [chr(c) for c in range(32, 0x20000) if old.category(chr(c)) == unicodedata.category(chr(c)) not in ("Cn", "Cs")
              and old.decomposition(chr(c)) == unicodedata.decomposition(chr(c)) and chr(c).isprintable()]
    words = ["a" + c + "b" for c in stable if sp.unk_id() not in sp.encode(fold.normalize_str(c)) and c not in "[<"]
    return check(folder.name, encode, folder, lambda a: ["[CLS]", *raw(a), "[SEP]"],
                 lambda a, b: ["[CLS]", *raw(a), "[SEP]", *raw(b), "[SEP]"], words)


def main():
    encode, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    nfc = normalizers.NFC()
    fine = [
        byte_pairs(encode, folder / "byte-pairs", False, None, hf.RobertaConfig),
        byte_pairs(encode, folder / "byte-pairs-space", True, None, hf.RobertaConfig),
        byte_pairs(encode, folder / "byte-pairs-nfc", False, nfc, hf.ModernBertConfig),
        word_pieces(encode, folder / "word-pieces", True),
        word_pieces(encode, folder / "word-pieces-cased", False),
        sentence_pieces(encode, folder / "pieces", hf.DebertaV2Config),
        sentence_pieces(encode, folder / "pieces-given", hf.DebertaV2Config, user_defined_symbols=["<x>", "foo"],
                        add_dummy_prefix=False),
        sentence_pieces(encode, folder / "pieces-spaces", hf.DebertaV2Config, remove_extra_whitespaces=False),
        sentence_pieces(encode, folder / "pieces-identity", hf.DebertaV2Config, normalization_rule_name="identity"),
        sentence_pieces(encode, folder / "pieces-xlm", hf.XLMRobertaConfig),
        albert(encode, folder / "pieces-albert"),
        albert_folds(encode, folder / "pieces-albert-folds"),
    ]
    if not all(fine):
        sys.exit("encoder_texts: FAILED")
    print(f"encoder_texts: all texts of {len(fine)} vocabularies have the tokens of the packages")


main()
