/* patterns.cpp owns the definitions behind patterns.h. */
#include "patterns.h"

#include <random>

namespace {

constexpr int64_t kLong = 16384, kShort = 4096, kSide = 128; /* kSide^2 = kLong */
constexpr uint64_t kSeed = 1;

std::vector<int32_t> every(int64_t step, int64_t n) {
  std::vector<int32_t> index;
  for (int64_t i = 0; i < n; i++) index.push_back((int32_t)(i * step));
  return index;
}

/* For patterns without data of their own. */
PatternSpec plain(const std::string &name, int64_t len, bool brief, attn_pattern p) {
  return {name, len, brief, [p](PatternData &d) { d.pattern = p; }};
}

attn_pattern causal(attn_pattern p) {
  p.causal = 1;
  return p;
}

attn_pattern image_2d(attn_image_order order) {
  attn_pattern p = attn_pattern_image_2d(kSide, kSide, 16, 16, 8, 8);
  p.bottom = 8;
  p.order = order;
  return p;
}

PatternSpec longformer(const std::string &where, int64_t step, bool brief) {
  return {"pattern:longformer/window:512/globals:16" + where, kLong, brief, [step](PatternData &d) {
            d.lists.push_back(every(step, 16));
            d.pattern = attn_pattern_longformer(256, 1, d.lists[0].data(), 16);
          }};
}

/* Lines of the grid of kSide x kSide along one axis, or -1: both. */
PatternSpec axial(const std::string &where, int64_t axis) {
  return {"pattern:axial/grid:128" + where, kLong, false, [axis](PatternData &d) {
            d.lists.push_back({(int32_t)kSide, (int32_t)kSide});
            d.pattern = attn_pattern_axial(d.lists[0].data(), 2, axis);
          }};
}

PatternSpec blockwise(int64_t blocks) {
  return {"pattern:blockwise/blocks:" + std::to_string(blocks), kLong, false,
          [blocks](PatternData &d) {
            d.lists.emplace_back((size_t)blocks);
            attn_block_permutations(d.lists[0].data(), 1, blocks, kSeed);
            d.pattern = attn_pattern_blockwise(blocks, d.lists[0].data());
          }};
}

/* A grid of kLong cells. */
PatternSpec neighborhood(const std::string &name, const std::vector<attn_axis> &axes) {
  return {"pattern:neighbourhood/" + name, kLong, false, [axes](PatternData &d) {
            d.axes = axes;
            d.pattern = attn_pattern_neighborhood_axes(d.axes.data(), (int64_t)d.axes.size());
          }};
}

/* 64, 448, 64, 448, .. tokens. */
PatternSpec segments() {
  return {"pattern:segments/length:64,448", kLong, false, [](PatternData &d) {
            d.lists.push_back({0});
            while (d.lists[0].back() < kLong)
              d.lists[0].push_back(d.lists[0].back() + (d.lists[0].size() % 2 ? 64 : 448));
            d.pattern = attn_pattern_segments(d.lists[0].data(), (int64_t)d.lists[0].size() - 1);
          }};
}

PatternSpec global(int64_t tokens) {
  return {"pattern:global/globals:" + std::to_string(tokens), kLong, false,
          [tokens](PatternData &d) {
            d.lists.push_back(every(1, tokens));
            d.pattern = attn_pattern_global(d.lists[0].data(), tokens);
          }};
}

PatternSpec scattered(int64_t percent, bool brief) {
  return {"pattern:csr/density:" + std::to_string(percent), kShort, brief,
          [percent](PatternData &d) {
            std::mt19937 random((unsigned)percent);
            unsigned below = (unsigned)((double)percent / 100 * 4294967296.0);
            d.lists.emplace_back();
            d.indptr.push_back(0);
            for (int64_t i = 0; i < kShort; i++) {
              for (int64_t j = 0; j < kShort; j++)
                if (random() < below) d.lists[0].push_back((int32_t)j);
              d.indptr.push_back((int64_t)d.lists[0].size());
            }
            d.pattern = attn_pattern_csr(d.indptr.data(), d.lists[0].data(), d.indptr.back());
          }};
}

}  // namespace

PatternSpec pattern_band_of(int64_t len) {
  return plain("pattern:band/window:512", len, true, attn_pattern_band(256, 256));
}

std::vector<PatternSpec> scattered_list() {
  return {scattered(1, false), scattered(2, false), scattered(5, true), scattered(10, false),
          scattered(20, false)};
}

std::vector<PatternSpec> pattern_list() {
  attn_sparse_use merged = ATTN_SPARSE_MERGED;
  return {
      pattern_band_of(kLong),
      plain("pattern:band/window:512/causal", kLong, false, causal(attn_pattern_band(511, 0))),
      plain("pattern:blocks/block:256", kLong, true, attn_pattern_blocks(256, 0, 0)),
      plain("pattern:bigbird/block:64", kLong, true, attn_pattern_bigbird(64, kSeed)),
      plain("pattern:bigbird/block:64", kShort, false, attn_pattern_bigbird(64, kSeed)),
      longformer("", 1, true),
      longformer("/spread", kLong / 16, false),
      plain("pattern:image_2d/tile:16/flange:8", kLong, true, image_2d(ATTN_IMAGE_NONE)),
      plain("pattern:image_2d/tile:16/flange:8/order:block", kLong, false,
            image_2d(ATTN_IMAGE_BLOCK)),
      plain("pattern:neighbourhood/radius:8", kLong, false,
            attn_pattern_neighborhood(kSide, kSide, 8)),
      neighborhood("kernel:17x17", {{kSide, 17, 1, 1, 0}, {kSide, 17, 1, 1, 0}}),
      neighborhood("kernel:13x13/dilation:4", {{kSide, 13, 1, 4, 0}, {kSide, 13, 1, 4, 0}}),
      neighborhood("kernel:16x16/stride:8", {{kSide, 16, 8, 1, 0}, {kSide, 16, 8, 1, 0}}),
      neighborhood("kernel:7x7x7/grid:16x32x32",
                   {{16, 7, 1, 1, 0}, {32, 7, 1, 1, 0}, {32, 7, 1, 1, 0}}),
      plain("pattern:chunked/chunk:1024", kLong, false, attn_pattern_chunked(1024)),
      plain("pattern:block_diffusion/block:256", kShort, false, attn_pattern_block_diffusion(256)),
      plain("pattern:dilated/window:128/dilation:4", kLong, false, attn_pattern_dilated(64, 64, 4)),
      plain("pattern:dilated/window:256/dilation:4", kLong, true,
            attn_pattern_dilated(128, 128, 4)),
      plain("pattern:strided/stride:128", kLong, true, attn_pattern_strided(128)),
      plain("pattern:strided/stride:128/causal", kLong, false, causal(attn_pattern_strided(128))),
      plain("pattern:sparse_strided/stride:128", kLong, true,
            attn_pattern_sparse_strided(128, merged)),
      plain("pattern:sparse_fixed/block:128/columns:8", kLong, false,
            attn_pattern_sparse_fixed(128, 8, merged)),
      plain("pattern:sparse_fixed/block:128/columns:32", kLong, true,
            attn_pattern_sparse_fixed(128, 32, merged)),
      plain("pattern:random_blocks/block:64/count:8", kLong, true,
            attn_pattern_random_blocks(64, 8, kSeed)),
      plain("pattern:random/count:64", kShort, true, attn_pattern_random(64, kSeed)),
      plain("pattern:random/count:64", kLong, false, attn_pattern_random(64, kSeed)),
      global(16),
      plain("pattern:star/width:1", kLong, false, attn_pattern_star(1)),
      plain("pattern:etc/globals:256/radius:84", kShort + 256, false, attn_pattern_etc(256, 84)),
      blockwise(16),
      plain("pattern:image_1d/block:256/before:256", kLong, false, attn_pattern_image_1d(256, 256)),
      axial("/axis:0", 0),
      axial("", -1),
      plain("pattern:tree/k:4/tokens:4096", attn_tree_nodes(kShort), false,
            attn_pattern_tree(kShort, 4)),
      segments(),
  };
}
