/* engine/form.h owns activations and gates that are cut and moved (attn_act_form), and the soft-cap of products. */

ATTN_FUNC_ int attn_formed_(const attn_act_form *m) {
  return m->slope != 0.0f || m->limit != 0.0f || m->gate_add != 0.0f;
}

ATTN_FUNC_ int attn_check_form_(attn_error_ *e, const attn_act_form *m, int gated) {
  const int slope = m->slope == 0.0f || (m->slope >= 1e-6f && m->slope <= 1e6f);
  if (!slope || !(m->limit >= 0.0f && m->limit < INFINITY) || !(m->gate_add - m->gate_add == 0.0f))
    return attn_reject_(
        e, ATTN_E_VALUE,
        "form.slope must be 0 or lie in 1e-6..1e6, form.limit be finite and not negative, "
        "form.gate_add finite");
  if (m->gate_add != 0.0f && !gated)
    return attn_reject_(e, ATTN_E_RANGE, "form.gate_add needs a gate (ff.w_3, params.gate)");
  return 1;
}

ATTN_FUNC_ float attn_form_slope_(const attn_act_form *m) {
  return m->slope != 0.0f ? m->slope : 1.0f;
}

/* What f and its product are of: x and the gate (null = none) cut and moved, to y and by; y may be x or gate. */
ATTN_FUNC_ void attn_form_cut_(const attn_table_ *f, float *y, const float *x, float *by,
                               const float *gate, int64_t n, const attn_act_form *m) {
  const attn_dense_table_ *on = attn_on_(dense, f);
  const float slope = attn_form_slope_(m), most = m->limit > 0.0f ? m->limit : INFINITY;
  const float in[2] = {slope, 0.0f}, back[2] = {1.0f / slope, m->gate_add / slope};
  if (gate) on->clip(by, gate, n, -most, most, back);
  on->clip(y, x, n, -INFINITY, most, in);
}

/* y = f(x) gate in a form; gate null = none; y may be x or gate. n at most ATTN_FORM_MOST_. */
enum { ATTN_FORM_MOST_ = 2048 };
ATTN_FUNC_ void attn_formed_row_(const attn_table_ *f, float *y, const float *x, const float *gate,
                                 int64_t n, int act, const attn_act_form *m) {
  const attn_dense_table_ *on = attn_on_(dense, f);
  const float slope = attn_form_slope_(m), back[2] = {1.0f / slope, 0.0f};
  float by[ATTN_FORM_MOST_];
  attn_form_cut_(f, y, x, by, gate, n, m);
  on->act(y, y, gate ? by : NULL, n, NULL, 1.0f, act);
  if (!gate && slope != 1.0f) on->clip(y, y, n, -INFINITY, INFINITY, back);
}

/* A soft-cap whose reciprocal is finite. */
ATTN_FUNC_ float attn_cap_(float c) { return c < FLT_MIN ? FLT_MIN : c; }

/* y = c tanh(y / c) */
ATTN_FUNC_ void attn_capped_row_(const attn_table_ *f, float *y, int64_t n, float c) {
  const float up[2] = {attn_cap_(c), 0.0f};
  attn_on_(dense, f)->activate(y, n, NULL, 1.0f / up[0], (int)ATTN_ACT_TANH);
  attn_on_(dense, f)->clip(y, y, n, -INFINITY, INFINITY, up);
}
