/* api/end.h closes the declarations. */
#ifdef __cplusplus
}
#endif
