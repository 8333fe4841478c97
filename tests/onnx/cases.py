#!/usr/bin/env python3
"""cases.py owns the ONNX package's node tests as plain bytes: it writes those of the operators that nodes.c
knows into one file, so that no C here reads protobuf. Values are those of the package's own references.

    case NAME OPERATOR RTOL ATOL
    attr NAME NUMBER|WORD                        as the node has it
    graph NAME OPERATORS NUMBER ..               a subgraph: its operators, and its constants of type float
    input NAME TYPE RANK EXTENT ..               then the numbers, in order, in this machine's bytes
    output NAME TYPE RANK EXTENT ..              likewise: what is expected
    end

The last line counts: "cases N".
"""

import sys
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

OPERATORS = (
    "Attention FlexAttention LinearAttention CausalConvWithState LayerNormalization MatMul Gemm TopK "
    "Gelu Relu Sigmoid Swish SwiGLU Tanh"
).split()


def graph(attribute):
    shapes = ("Shape", "Gather", "Range", "Reshape")  # they make the indices of a pair
    kinds = [node.op_type for node in attribute.g.node if node.op_type not in shapes]
    numbers = [onnx.numpy_helper.to_array(t) for t in attribute.g.initializer]
    numbers = [float(n) for n in numbers if n.dtype.kind == "f" and n.ndim == 0]
    return "graph %s %s%s\n" % (attribute.name, ",".join(kinds), "".join(" %.9g" % n for n in numbers))


def attribute_line(attribute):
    if attribute.type == onnx.AttributeProto.GRAPH:
        return graph(attribute)
    value = onnx.helper.get_attribute_value(attribute)
    text = value.decode() if isinstance(value, bytes) else "%.9g" % value
    return "attr %s %s\n" % (attribute.name, text)


def tensor(out, role, name, array):
    extents = "".join(" %d" % n for n in array.shape)
    out.write(("%s %s %s %d%s\n" % (role, name, array.dtype.name, array.ndim, extents)).encode())
    out.write(np.ascontiguousarray(array).tobytes())
    out.write(b"\n")


def main(path):
    warnings.simplefilter("ignore")
    count = 0
    with open(path, "wb") as out:
        for test in collect_testcases():
            nodes = test.model.graph.node
            # the _expanded ones are the same numbers for the operator's own definition by other operators
            if len(nodes) != 1 or nodes[0].op_type not in OPERATORS:
                continue
            node = nodes[0]
            for inputs, outputs in test.data_sets:
                out.write(("case %s %s %.9g %.9g\n" % (test.name, node.op_type, test.rtol, test.atol)).encode())
                for attribute in node.attribute:
                    out.write(attribute_line(attribute).encode())
                for names, arrays, role in ((node.input, inputs, "input"), (node.output, outputs, "output")):
                    names = [name for name in names if name]
                    if len(names) != len(arrays):
                        sys.exit("%s: %d %ss for %d names" % (test.name, len(arrays), role, len(names)))
                    for name, array in zip(names, arrays):
                        tensor(out, role, name, array)
                out.write(b"end\n")
                count += 1
        out.write(b"cases %d\n" % count)


main(sys.argv[1])
