/* api/left_out.h owns what a call says whose family ATTN_ONLY leaves out: in place of the function stands a
 * name that nothing declares. Made by attn/left_out from the declarations. */

#if !ATTN_HAS_BLOCKS
#define attn_decoder(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_decoder_start(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_decoder_start_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_decoder_step(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_decoder_step_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_decoder_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_encoder(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_encoder_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_expert_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_expert_rows_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_feed_forward_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_feed_forward_rows_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_returns(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_returns_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_reversible(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_reversible_inverse(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_reversible_inverse_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_reversible_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_stream_mean(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_stream_mean_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_mask(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_predict(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_predict_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_tokens(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#define attn_trajectory_tokens_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS
#endif
#if !ATTN_HAS_BLOCKS_AND_TRAINING
#define attn_decoder_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#define attn_decoder_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#define attn_encoder_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#define attn_encoder_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#define attn_reversible_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#define attn_reversible_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_BLOCKS_AND_TRAINING
#endif
#if !ATTN_HAS_CACHE
#define attn_cache_accept(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_append(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_append_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_fork(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_open(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_release(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_rollback(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_sdpa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_sdpa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_cache_size(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_draft_mask(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_draft_positions(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#define attn_sequence_init(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CACHE
#endif
#if !ATTN_HAS_COMPRESSION
#define attn_cluster_queries(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_cluster_queries_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_clustered(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_clustered_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_isab(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_isab_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_linformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_linformer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_local(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_local_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_begin(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_causal(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_causal_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_layer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_layer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_state_bytes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_luna_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_mab(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_mab_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_memory_compressed(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_memory_compressed_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_pma(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_pma_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_poolingformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_poolingformer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_measure(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_measure_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_samples(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_select(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_select_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#define attn_probsparse_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_COMPRESSION
#endif
#if !ATTN_HAS_CONTENT
#define attn_choose(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_choose_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_dispatch(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_dispatch_select(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_dispatch_select_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_dispatch_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_gate(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_gate_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_gated(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_gated_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_buckets(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_hash(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_hash_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_qk(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_qk_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lsh_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lstm_step(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_lstm_step_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_mixture(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_mixture_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_mra(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_mra_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_pointer_logits(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_pointer_logits_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_attend(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_attend_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_entries(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_select(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_select_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_start(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_start_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_update(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_update_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_routing_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_count(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_csr(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_csr_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_edges(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_edges_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_room(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sac_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_balance(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_balance_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_blocks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_blocks_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_choose(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_choose_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_logits(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_logits_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sinkhorn_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sortcut(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_sortcut_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_topk_sdpa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_topk_sdpa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_topk_select(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_topk_select_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_yoso(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_yoso_sample(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_yoso_sample_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#define attn_yoso_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_CONTENT
#endif
#if !ATTN_HAS_DENSE
#define attn_activate(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_activate_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_gemm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_gemm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_layer_norm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_layer_norm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_rms_norm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#define attn_rms_norm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DENSE
#endif
#if !ATTN_HAS_DEPTH
#define attn_calm_calibrate(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_calm_calibrate_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_calm_exit(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_calm_exit_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_calm_threshold(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_confidence(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_confidence_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_decoder(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_decoder_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_smooth(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_smooth_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_target(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exit_target_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exits(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_exits_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_universal(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#define attn_universal_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_DEPTH
#endif
#if !ATTN_HAS_EDGES
#define attn_edges(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_EDGES
#define attn_edges_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_EDGES
#endif
#if !ATTN_HAS_EDGES_AND_TRAINING
#define attn_edges_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_EDGES_AND_TRAINING
#define attn_edges_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_EDGES_AND_TRAINING
#endif
#if !ATTN_HAS_HEADS
#define attn_capsules(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_capsules_em(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_capsules_em_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_capsules_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_collaborative(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_collaborative_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_disagreement(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_disagreement_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_guided_loss(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_guided_loss_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_span_penalty(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_span_predict(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_span_predict_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_span_reach(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_talking(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#define attn_talking_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS
#endif
#if !ATTN_HAS_HEADS_AND_TRAINING
#define attn_talking_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS_AND_TRAINING
#define attn_talking_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_HEADS_AND_TRAINING
#endif
#if !ATTN_HAS_LATENT
#define attn_mla(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LATENT
#define attn_mla_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LATENT
#define attn_tpa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LATENT
#define attn_tpa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LATENT
#endif
#if !ATTN_HAS_LINEAR
#define attn_damped_ema(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_damped_ema_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_feature_count(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_features(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_features_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_gated_norm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_gated_norm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_linear(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_linear_begin(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_linear_state_bytes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_linear_view(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_linear_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_log_decay(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_log_decay_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_random_feature_count(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_random_features(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_random_features_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_recurrent(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_recurrent_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_short_convolve(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#define attn_short_convolve_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR
#endif
#if !ATTN_HAS_LINEAR_AND_TRAINING
#define attn_features_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#define attn_features_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#define attn_linear_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#define attn_linear_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#define attn_recurrent_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#define attn_recurrent_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LINEAR_AND_TRAINING
#endif
#if !ATTN_HAS_LOWRANK
#define attn_csalr(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#define attn_csalr_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#define attn_low_rank_band(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#define attn_low_rank_band_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#define attn_nystrom(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#define attn_nystrom_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_LOWRANK
#endif
#if !ATTN_HAS_MAPS
#define attn_lazyformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_lazyformer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_map_apply(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_map_apply_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_predictive(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_predictive_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_realformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_realformer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_score_mix(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_score_mix_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_synthesizer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#define attn_synthesizer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MAPS
#endif
#if !ATTN_HAS_MEMORY
#define attn_attention_loss(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_attention_loss_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_compress(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_compress_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_compressive_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_compressive_update(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_compressive_update_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_gtrxl(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_gtrxl_gate(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_gtrxl_gate_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_gtrxl_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_infini(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_infini_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_knn_lm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_knn_lm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_knn_search(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_knn_search_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memorizing(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memorizing_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memory_append(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memory_append_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memory_parts(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memory_update(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_memory_update_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_rebuild_loss(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_rebuild_loss_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_recall_append(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_recall_append_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_recursive(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_recursive_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_layer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_layer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_output(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_output_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_project(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_project_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_segment_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_spalm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_spalm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_usage(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#define attn_usage_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MEMORY
#endif
#if !ATTN_HAS_MIXERS
#define attn_fnet(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_fnet_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_fourier(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_fourier_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_gmlp(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_gmlp_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_mixer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#define attn_mixer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MIXERS
#endif
#if !ATTN_HAS_MULTIHEAD
#define attn_multihead(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD
#define attn_multihead_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD
#endif
#if !ATTN_HAS_MULTIHEAD_AND_TRAINING
#define attn_feed_forward_rows_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD_AND_TRAINING
#define attn_feed_forward_rows_backward_workspace(...) \
  ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD_AND_TRAINING
#define attn_multihead_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD_AND_TRAINING
#define attn_multihead_backward_workspace(...) \
  ATTN_ONLY_leaves_out_ATTN_FAMILY_MULTIHEAD_AND_TRAINING
#endif
#if !ATTN_HAS_PATTERN
#define attn_block_permutations(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_axial(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_band(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_bigbird(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_bigbird_etc(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_bigbird_tokens(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_bitmap(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_block_causal(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_block_diffusion(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_block_mask(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_blocks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_blockwise(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_chunked(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_complement(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_csr(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_diff(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_dilated(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_etc(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_full(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_global(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_image_1d(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_image_2d(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_intersect(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_longformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_multiscale(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_neighborhood(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_neighborhood_axes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_per_head(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_predicate(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_random(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_random_blocks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_render(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_ring(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_segments(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_sparse_fixed(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_sparse_strided(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_star(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_strided(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_transpose(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_tree(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_pattern_union(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_build(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_bytes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_csr(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_describe(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_free(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#define attn_schedule_open(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PATTERN
#endif
#if !ATTN_HAS_POSITION
#define attn_alibi_slopes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_deberta_bucket(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_learned_position(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_learned_position_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_rope(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_rope_frequencies(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_rope_mscale(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_rope_type_of(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_rope_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_sinusoid(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_sinusoid_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_t5_bucket(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_universal_signal(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#define attn_universal_signal_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_POSITION
#endif
#if !ATTN_HAS_PRIORS
#define attn_average(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_average_begin(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_average_state_bytes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_average_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_block_prior_add(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_camtl(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_camtl_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_film_blocks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_film_blocks_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_gaussian_window(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_gaussian_window_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_hard_gaussian(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#define attn_hard_gaussian_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_PRIORS
#endif
#if !ATTN_HAS_QUANTIZE
#define attn_dequantize(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_QUANTIZE
#define attn_dequantize_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_QUANTIZE
#define attn_quantize(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_QUANTIZE
#define attn_quantize_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_QUANTIZE
#endif
#if !ATTN_HAS_RELU
#define attn_relu(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RELU
#define attn_relu_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RELU
#endif
#if !ATTN_HAS_RELU_AND_TRAINING
#define attn_relu_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RELU_AND_TRAINING
#define attn_relu_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RELU_AND_TRAINING
#endif
#if !ATTN_HAS_RESHAPED
#define attn_differential(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#define attn_differential_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#define attn_path_turn(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#define attn_path_turn_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#define attn_reshaped(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#define attn_reshaped_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_RESHAPED
#endif
#if !ATTN_HAS_SDPA
#define attn_merge(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SDPA
#define attn_merge_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SDPA
#define attn_sdpa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SDPA
#define attn_sdpa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SDPA
#endif
#if !ATTN_HAS_SELECTION
#define attn_cache_evict(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_dsa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_dsa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_evict(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_evict_choose(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_evict_choose_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_evict_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_h2o(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_h2o_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_key_blocks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_key_blocks_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_moba(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_moba_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_nsa(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_nsa_compress(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_nsa_compress_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_nsa_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_quest(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_quest_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_snapkv(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_snapkv_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_vertical_slash(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_vertical_slash_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_xattention(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#define attn_xattention_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SELECTION
#endif
#if !ATTN_HAS_SEQUENCE
#define attn_convolve(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_convolve_depthwise(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_convolve_depthwise_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_convolve_len(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_convolve_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_kmeans_step(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_kmeans_step_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_pinv(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_pinv_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_pool(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_pool_len(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_pool_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_solve(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_solve_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_top_k(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#define attn_top_k_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SEQUENCE
#endif
#if !ATTN_HAS_SPARSE
#define attn_etc(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_etc_labels(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_etc_masks(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_etc_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_global_rows(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_global_rows_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_hierarchy(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_hierarchy_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_long_t5(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_long_t5_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_longformer(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_longformer_schedule(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_longformer_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_ngram(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_ngram_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_segmented(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_segmented_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_star_relay(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_star_relay_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_star_satellites(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_star_satellites_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_tree(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_tree_label(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_tree_nodes(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#define attn_tree_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE
#endif
#if !ATTN_HAS_SPARSE_AND_TRAINING
#define attn_longformer_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE_AND_TRAINING
#define attn_longformer_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_SPARSE_AND_TRAINING
#endif
#if !ATTN_HAS_TRAINING
#define attn_activate_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_activate_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_adamw(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_convolve_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_convolve_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_convolve_depthwise_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_convolve_depthwise_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_cross_entropy(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_cross_entropy_head(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_cross_entropy_head_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_cross_entropy_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_dropout(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_dropout_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_gemm_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_gemm_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_global_norm(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_global_norm_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_layer_norm_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_layer_norm_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_learned_position_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_learned_position_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_merge_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_merge_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_pinv_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_pinv_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_pool_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_pool_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_rms_norm_backward(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_rms_norm_backward_workspace(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#define attn_sgd(...) ATTN_ONLY_leaves_out_ATTN_FAMILY_TRAINING
#endif
