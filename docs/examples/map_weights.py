"""map_weights.py owns the weights of map.c: out of the wheel rxnmapper of PyPI, whose checkpoint is a
pickle of PyTorch, into model.safetensors; config.json and vocab.txt beside it as they are in the wheel.

    python3 docs/examples/map_weights.py FOLDER [WHEEL]

Without WHEEL the one in FOLDER serves, which pip downloads (3 MB) where it is missing. Nothing but the
standard library is needed. The checkpoint is data: of its pickles only the few names are looked up
that a table of tensors takes."""
import collections
import glob
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

VERSION = "0.4.3"  # the wheel test_map.tsv was made with
MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/"
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of PyTorch's format before 1.6


def stop(sentence):
    sys.exit("map_weights: " + sentence)


def download(folder):
    """The path of the wheel, which pip puts into the folder."""
    if sys.stderr.isatty():
        print("downloading rxnmapper %s, 3 MB, from PyPI" % VERSION, file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "--no-input",
           "--timeout", "15", "--retries", "1", "-d", folder, "rxnmapper==" + VERSION]
    try:
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    except (OSError, subprocess.SubprocessError):
        stop("the weights could not be downloaded; put rxnmapper-%s-py3-none-any.whl of "
             "https://pypi.org/project/rxnmapper into %s and start again" % (VERSION, folder))
    return wheel_in(folder)


def wheel_in(folder):
    wheels = sorted(glob.glob(os.path.join(glob.escape(folder), "rxnmapper-*.whl")))
    return wheels[-1] if wheels else None


class Storage:
    """Numbers that tensors are views of; their bytes come after all pickles."""

    def __init__(self, kind, count):
        if kind != "FloatStorage":
            raise pickle.UnpicklingError("numbers of type %s, not f32" % kind)
        self.count, self.bytes = count, b""


class Reader(pickle.Unpickler):
    """Unpickles a table of tensors as {name: (storage, offset, shape)}."""

    def __init__(self, file, storages):
        super().__init__(file)
        self.storages = storages

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.tensor
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError("it names %s.%s, which no table of tensors does" % (module, name))

    def persistent_load(self, what):
        _, kind, key, _, count, view = what
        if view is not None:
            raise pickle.UnpicklingError("a storage within another one")
        return self.storages.setdefault(key, Storage(kind, count))

    @staticmethod
    def tensor(storage, offset, shape, stride, *_):
        dense = 1
        for extent, step in zip(reversed(shape), reversed(stride)):
            if extent != 1 and step != dense:
                raise pickle.UnpicklingError("a tensor that is no plain array")
            dense *= extent
        if offset < 0 or offset + dense > storage.count:
            raise pickle.UnpicklingError("a tensor beyond its numbers")
        return storage, offset, shape


def read_checkpoint(file):
    """{name: (shape, bytes of f32, little-endian)}"""
    storages = {}
    if pickle.load(file) != MAGIC or pickle.load(file) != PROTOCOL or not pickle.load(file)["little_endian"]:
        raise pickle.UnpicklingError("another format than expected")
    table = Reader(file, storages).load()
    for key in pickle.load(file):
        storage = storages[key]
        (count,) = struct.unpack("<q", file.read(8))
        storage.bytes = file.read(4 * count)
        if count != storage.count or len(storage.bytes) != 4 * count:
            raise pickle.UnpicklingError("it is cut short")
    tensors = {}
    for name, (storage, offset, shape) in table.items():
        count = 1
        for extent in shape:
            count *= extent
        tensors[name] = (list(shape), storage.bytes[4 * offset:4 * (offset + count)])
    return tensors


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)
    os.replace(path + ".part", path)


def main():
    if len(sys.argv) not in (2, 3):
        stop("usage: map_weights.py FOLDER [WHEEL]")
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    wheel = sys.argv[2] if len(sys.argv) == 3 else wheel_in(folder) or download(folder)
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(MODEL + "pytorch_model.bin") as file:
                tensors = read_checkpoint(file)
            for name in ("config.json", "vocab.txt"):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(archive.read(MODEL + name))
        # the encoder; what predicts masked tokens is not needed
        write_safetensors(os.path.join(folder, "model.safetensors"),
                          {name: t for name, t in tensors.items() if name.startswith("albert.")})
    except (OSError, KeyError, ValueError, TypeError, AttributeError, EOFError, IndexError, struct.error,
            zipfile.BadZipFile, pickle.UnpicklingError) as error:
        stop("%s is no wheel of rxnmapper that can be read: %s" % (wheel, error))


main()
