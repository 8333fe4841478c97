/* fuzz.c owns the choice of what an input's bytes mean: a call of attn_sdpa, attn_relu, attn_edges,
 * attn_merge, attn_rope, attn_exp or attn_gemm, of what costs less than attention or is part of a layer, of
 * attention by content, by choice, by selection, over maps or across heads, of blocks, stacks of them and
 * their exits, of experts, mixers and gates, of streams, averages and what stands around a decaying state, over
 * latent rows, operations on a cache, or a pattern and what is done with it. About half of the calls are
 * valid; the others have a flaw or three. Everything a call may touch has exactly the memory it may touch,
 * so under the address sanitizer every stray access ends the run. */

#include "library.h"

#include "blocks.h"
#include "cache.h"
#include "choice.h"
#include "content.h"
#include "depth.h"
#include "exits.h"
#include "experts.h"
#include "gates.h"
#include "heads.h"
#include "latent.h"
#include "layers.h"
#include "linear.h"
#include "maps.h"
#include "mixers.h"
#include "pattern.h"
#include "product.h"
#include "rows.h"
#include "differential.h"
#include "reshaped.h"
#include "sdpa.h"
#include "selection.h"
#include "streams.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input in = {data, data + size};
  if (size > 0 && data[0] >= 240) {
    take(&in);
    fuzz_cache(&in);
    return 0;
  }
  if (size > 0 && data[0] >= 215 && data[0] < 224) {
    take(&in);
    switch ((data[0] - 215) / 3) {
      case 0: fuzz_block(&in); break;
      case 1: fuzz_depth(&in); break;
      default: fuzz_exit(&in); break;
    }
    return 0;
  }
  if (size > 0 && data[0] >= 224) {
    take(&in);
    switch (data[0] - 224) {
      case 0: fuzz_gemm(&in); break;
      case 1:
      case 2:
      case 3: fuzz_linear(&in); break;
      case 4:
      case 5:
      case 6: fuzz_layer(&in); break;
      case 7:
      case 8:
      case 9: fuzz_content(&in); break;
      case 10:
      case 11:
      case 12: fuzz_choice(&in); break;
      case 13:
      case 14: fuzz_map(&in); break;
      default: fuzz_head(&in); break;
    }
    return 0;
  }
  if (size > 0 && (data[0] == 197 || data[0] == 198)) {
    take(&in);
    if (data[0] == 197)
      fuzz_experts(&in);
    else
      fuzz_stream(&in);
    return 0;
  }
  if (size > 0 && data[0] >= 199 && data[0] < 205) {
    take(&in);
    if (data[0] < 202)
      fuzz_selection(&in);
    else if (data[0] < 204)
      fuzz_latent(&in);
    else
      fuzz_draft(&in);
    return 0;
  }
  if (size > 0 && data[0] >= 205 && data[0] < 208) {
    take(&in);
    if (data[0] < 207)
      fuzz_reshaped(&in);
    else
      fuzz_differential(&in);
    return 0;
  }
  if (size > 0 && data[0] >= 208 && data[0] < 214) {
    take(&in);
    if (data[0] < 211)
      fuzz_mixer(&in);
    else
      fuzz_gate(&in);
    return 0;
  }
  if (size > 0 && data[0] == 214) {
    take(&in);
    fuzz_path_turn(&in);
    return 0;
  }
  switch (below(&in, 16)) {
    case 5: fuzz_merge(&in); break;
    case 6: fuzz_rope(&in); break;
    case 7: fuzz_exp(&in); break;
    case 8:
    case 9: fuzz_sdpa(&in, 1); break;
    case 10: fuzz_relu(&in); break;
    case 11: fuzz_edges(&in); break;
    case 12:
    case 13:
    case 14:
    case 15: fuzz_pattern(&in); break;
    default: fuzz_sdpa(&in, 0); break;
  }
  return 0;
}
