/* bench/calls/gemm.cpp owns the entries of dense products, against OpenBLAS. */

#include "functions.h"
#include "peers.h"

namespace {

/* A dense product of m rows of k by k x n. */
void gemm(Call &c, int64_t m, int64_t k, int64_t n, attn_gemm_params p) {
  attn_tensor x = c.rows(1, m, k), y = c.rows(1, m, n);
  attn_tensor w = p.w_transposed ? c.rows(1, n, k) : c.rows(1, k, n);
  if (p.activation) p.bias = c.rows(1, 1, n);
  c.flops = 2.0 * (double)(m * k * n);
  c.bytes = 4.0 * (double)(m * k + k * n + m * n);
  c.run = [=](attn_ctx *ctx) { return attn_gemm(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gemm_workspace(y, x, w, &p, ctx); };
  if (p.activation) return;
  float *other = c.numbers(m * n, 0);
  c.peer = [=] { peer_gemm(other, (float *)x.data, (float *)w.data, m, k, n, p.w_transposed); };
}

void transposed(Call &c, int64_t m, int64_t k, int64_t n) {
  attn_gemm_params p = {};
  p.w_transposed = 1;
  gemm(c, m, k, n, p);
}

/* Numbers of f32, products of bf16 or f16; the peer's are f32 too. */
void narrow(Call &c, int64_t m, int64_t k, int64_t n, attn_compute compute) {
  attn_gemm_params p = {};
  p.compute = compute;
  gemm(c, m, k, n, p);
}

/* Rows by a matrix of a narrow type, one: what a decoded token pays. bits 16: bf16. */
void coded(Call &c, int64_t m, int64_t k, int64_t n, int bits, int transposed,
           attn_compute compute) {
  const int64_t group = 128, row = transposed ? k : n, rows = transposed ? n : k;
  attn_gemm_params p = {};
  attn_tensor x = c.rows(1, m, k), y = c.rows(1, m, n), w = c.rows(1, rows, row * bits / 32);
  w.dtype = bits == 16 ? ATTN_BF16 : bits == 8 ? ATTN_I8 : ATTN_I4;
  w.dim = w.stride_len = row, w.stride_head = w.stride_batch = row * rows;
  if (bits < 16) {
    p.w_scales.scale = (float *)c.rows(1, rows, row / group).data, p.w_scales.group = group;
    p.w_scales.stride_len = transposed ? k / group : n;
  }
  p.w_transposed = transposed, p.compute = compute, p.compute_prefer = 1;
  c.flops = 2.0 * (double)(m * k * n);
  c.bytes = 4.0 * (double)(m > 1 ? m * (k + n) : 0) + (double)(k * n * bits / 8) +
            (bits < 16 ? 4.0 * (double)(k * n / group) : 0);
  c.run = [=](attn_ctx *ctx) { return attn_gemm(y, x, w, &p, ctx); };
  c.size = [=](const attn_ctx *ctx) { return attn_gemm_workspace(y, x, w, &p, ctx); };
}

void decode(Call &c, int64_t k, int64_t n, int bits, int transposed) {
  coded(c, 1, k, n, bits, transposed, ATTN_COMPUTE_F32);
}
void decode_int8(Call &c, int64_t k, int64_t n, int bits, int transposed) {
  coded(c, 1, k, n, bits, transposed, ATTN_COMPUTE_I8);
}

const CallEntry entries[] = {
    {"gemm", "m:512/n:768/k:768/compute:bf16",
     [](Call &c) { narrow(c, 512, 768, 768, ATTN_COMPUTE_BF16); }},
    {"gemm", "m:512/n:768/k:3072/compute:bf16",
     [](Call &c) { narrow(c, 512, 3072, 768, ATTN_COMPUTE_BF16); }},
    {"gemm", "m:512/n:768/k:768/compute:f16",
     [](Call &c) { narrow(c, 512, 768, 768, ATTN_COMPUTE_F16); }},
    {"gemm", "m:512/n:512/k:64", [](Call &c) { gemm(c, 512, 64, 512, {}); }},
    {"gemm", "m:2048/n:256/k:128", [](Call &c) { gemm(c, 2048, 128, 256, {}); }},
    {"gemm", "m:2048/n:256/k:128/transposed", [](Call &c) { transposed(c, 2048, 128, 256); }},
    {"gemm", "m:512/n:2048/k:512/gelu",
     [](Call &c) {
       attn_gemm_params p = {};
       p.activation = ATTN_ACT_GELU;
       gemm(c, 512, 512, 2048, p);
     }},
    {"gemm", "m:1/n:512/k:512", [](Call &c) { gemm(c, 1, 512, 512, {}); }},
    {"gemm", "m:1/n:768/k:768/transposed", [](Call &c) { transposed(c, 1, 768, 768); }},
    {"gemm", "m:4/n:768/k:768/transposed", [](Call &c) { transposed(c, 4, 768, 768); }},
    {"gemm", "m:16/n:768/k:768/transposed", [](Call &c) { transposed(c, 16, 768, 768); }},
    {"gemm", "m:1/n:4096/k:4096/bf16", [](Call &c) { decode(c, 4096, 4096, 16, 0); }},
    {"gemm", "m:1/n:4096/k:4096/bf16/transposed", [](Call &c) { decode(c, 4096, 4096, 16, 1); }},
    {"gemm", "m:1/n:8192/k:8192/int8", [](Call &c) { decode(c, 8192, 8192, 8, 0); }},
    {"gemm", "m:1/n:8192/k:8192/int8/transposed", [](Call &c) { decode(c, 8192, 8192, 8, 1); }},
    {"gemm", "m:1/n:8192/k:8192/int4", [](Call &c) { decode(c, 8192, 8192, 4, 0); }},
    {"gemm", "m:1/n:8192/k:8192/int4/transposed", [](Call &c) { decode(c, 8192, 8192, 4, 1); }},
    {"gemm", "m:1/n:8192/k:8192/int8/compute:int8",
     [](Call &c) { decode_int8(c, 8192, 8192, 8, 0); }},
    {"gemm", "m:1/n:8192/k:8192/int8/transposed/compute:int8",
     [](Call &c) { decode_int8(c, 8192, 8192, 8, 1); }},
    {"gemm", "m:1/n:8192/k:8192/int4/compute:int8",
     [](Call &c) { decode_int8(c, 8192, 8192, 4, 0); }},
    {"gemm", "m:1/n:8192/k:8192/int4/transposed/compute:int8",
     [](Call &c) { decode_int8(c, 8192, 8192, 4, 1); }},
    {"gemm", "m:512/n:768/k:768/int8",
     [](Call &c) { coded(c, 512, 768, 768, 8, 0, ATTN_COMPUTE_F32); }},
    {"gemm", "m:512/n:768/k:768/int4/transposed",
     [](Call &c) { coded(c, 512, 768, 768, 4, 1, ATTN_COMPUTE_F32); }},
    {"gemm", "m:512/n:768/k:768/int8/compute:int8",
     [](Call &c) { coded(c, 512, 768, 768, 8, 0, ATTN_COMPUTE_I8); }},
    {"gemm", "m:512/n:768/k:768/int4/transposed/compute:int8",
     [](Call &c) { coded(c, 512, 768, 768, 4, 1, ATTN_COMPUTE_I8); }},
};

}  // namespace

void register_gemm(const Selection &s) { register_calls(s, entries); }
