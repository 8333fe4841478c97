/* tests/list.h owns the list of all tests. FRESH tests fork processes that have not used attn.h
 * yet, so they come first; ONCE tests do not depend on a tier; TIER tests run on every tier. */

#ifndef TESTS_LIST_H
#define TESTS_LIST_H

#define FRESH_TESTS(X)   \
  X(isa_env_unknown)     \
  X(isa_env_caps)        \
  X(isa_env_default)     \
  X(isa_limit)           \
  X(isa_lower_cap_holds) \
  X(isa_first_use_by_many)

#define ONCE_TESTS(X)        \
  X(isa_names)               \
  X(isa_matches_the_machine) \
  X(api_status_strings)      \
  X(api_views)               \
  X(api_oracle_conversions)  \
  X(api_catalogue)           \
  X(B6_slopes)

#define TIER_TESTS(X)                       \
  X(isa_report_names_the_forced_tier)       \
  X(exp_ulp)                                \
  X(exp_against_sleef)                      \
  X(exp_special_values)                     \
  X(exp_default_nan)                        \
  X(exp_body_and_tail)                      \
  X(exp_in_place)                           \
  X(exp_rejects)                            \
  X(A1_random_shapes)                       \
  X(A1_every_tail)                          \
  X(A1_tile_edges)                          \
  X(A1_layouts)                             \
  X(A1_storage_types)                       \
  X(A1_storage_every_pattern)               \
  X(A1_storage_rounding)                    \
  X(A1_null_context_and_params)             \
  X(A1_one_key)                             \
  X(A1_identical_keys)                      \
  X(A1_scale)                               \
  X(A1_extreme_logits)                      \
  X(A1_no_keys)                             \
  X(A1_empty_extents)                       \
  X(A1_map)                                 \
  X(A1_convex_hull)                         \
  X(A1_permuted_keys_and_queries)           \
  X(A1_shifted_keys)                        \
  X(A1_value_is_slice_of_key)               \
  X(A1_long_rows)                           \
  X(A1_nan_in_query)                        \
  X(A1_nan_in_allowed_key)                  \
  X(A1_nan_payloads)                        \
  X(A1_infinite_scores)                     \
  X(A1_softcap)                             \
  X(A1_softcap_saturates)                   \
  X(A1_softcap_tiny)                        \
  X(A1_sinks)                               \
  X(A1_sink_is_a_key_without_value)         \
  X(A1_split_and_merge)                     \
  X(A1_merge_matches_formula)               \
  X(A1_merge_empty_is_identity)             \
  X(A1_merge_in_place)                      \
  X(A1_merge_nan)                           \
  X(A1_merge_rejects)                       \
  X(A2_causal)                              \
  X(A2_causal_offset)                       \
  X(A2_window)                              \
  X(A2_huge_offset_and_window)              \
  X(A2_boolean_mask)                        \
  X(A2_bit_mask)                            \
  X(A2_nearly_uniform_mask)                 \
  X(A2_additive_mask)                       \
  X(A2_lengths)                             \
  X(A2_everything_combined)                 \
  X(A2_boolean_equals_additive_equals_bits) \
  X(A2_empty_rows)                          \
  X(A2_lowest_bias)                         \
  X(A2_bias_per_key_or_pair)                \
  X(A2_empty_and_huge)                      \
  X(A2_additive_constant_row)               \
  X(A2_growing_prefix)                      \
  X(A2_forbidden_garbage)                   \
  X(A2_garbage_on_the_diagonal)             \
  X(A2_work_follows_structure)              \
  X(A5_grouped_heads)                       \
  X(A5_grouped_decode)                      \
  X(A5_equals_repeated_heads)               \
  X(A5_permuted_within_group)               \
  X(A6_head_widths)                         \
  X(A6_zero_columns)                        \
  X(A6_zero_query_of_width_one)             \
  X(B5_random_rotations)                    \
  X(B5_far_positions)                       \
  X(B5_defaults_and_identity)               \
  X(B5_in_place)                            \
  X(B5_inverse_and_norm)                    \
  X(B5_relative_scores)                     \
  X(B5_layouts_agree)                       \
  X(B5_nan_stays_in_its_pair)               \
  X(B5_default_nan)                         \
  X(B5_workspace)                           \
  X(B5_workers)                             \
  X(B5_rejects)                             \
  X(B6_random_shapes)                       \
  X(B6_zero_slopes)                         \
  X(B6_geometric_weights)                   \
  X(api_rejects)                            \
  X(api_accepts_the_unspoilt_call)          \
  X(api_validation_is_optional)             \
  X(api_workspace_is_exact)                 \
  X(api_workspace_ignores_lengths)          \
  X(api_memory_use)                         \
  X(api_gaps_stay)                          \
  X(api_guard_pages_behind)                 \
  X(api_guard_pages_ahead)                  \
  X(api_guard_unread_keys)                  \
  X(api_guard_rope_merge_exp)               \
  X(api_bits_any_workers)                   \
  X(api_bits_any_composition)               \
  X(api_bits_any_chunks)                    \
  X(api_bits_any_layout)                    \
  X(api_bits_golden)                        \
  X(api_report)

#define DECLARE(name) void name(void **state);
FRESH_TESTS(DECLARE)
ONCE_TESTS(DECLARE)
TIER_TESTS(DECLARE)
#undef DECLARE

#endif
