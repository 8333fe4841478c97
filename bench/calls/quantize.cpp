/* bench/calls/quantize.cpp owns the entries of rows into quantised storage, and back. */

#include <vector>

#include "kinds.h"

namespace {

/* Rows of K; bytes of f32. */
class QuantizeCase : public PassCase {
 public:
  QuantizeCase(attn_isa isa, attn_dtype dtype, int64_t len, int64_t dim, bool back)
      : PassCase(isa),
        x_(random_floats((size_t)(len * dim), -1, 1)),
        codes_(x_.size()),
        scale_((size_t)len) {
    attn_tensor x = attn_bhtd(x_.data(), ATTN_F32, 1, 1, len, dim);
    attn_tensor y = attn_bhtd(codes_.data(), dtype, 1, 1, len, dim);
    attn_scales s = attn_scales_dense(scale_.data(), nullptr, 0, &y);
    if (attn_quantize(y, s, x, &ctx_) != ATTN_OK) failure = ctx_.reason;
    pass(4.0 * (double)x_.size(),
         [=] { return back ? attn_dequantize(x, y, s, &ctx_) : attn_quantize(y, s, x, &ctx_); });
  }

 private:
  Floats x_;
  std::vector<unsigned char> codes_;
  Floats scale_;
};

}  // namespace

void register_quantize(const Selection &s) {
  if (s.sparse) return;
  const attn_isa isa = s.isa;
  const std::string tier = attn_isa_name(isa);
  static const char *const types[] = {"i8", "i4", "e4m3"};
  for (int type = 0; type < 3; type++)
    for (bool back : {false, true})
      case_register(std::string(back ? "dequantize" : "quantize") + "/" + types[type] + "/" + tier +
                        "/T:4096/d:128",
                    [=] {
                      return std::make_unique<QuantizeCase>(isa, (attn_dtype)(ATTN_I8 + type), 4096,
                                                            128, back);
                    });
}
