/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */

static const uint64_t golden[] = {
    0xf026f0ed1ba6fb86u, /* plain */
    0x5a96b563a6683975u, /* causal */
    0x0290bb22fc737d0cu, /* wide */
    0xfc0ef24fefc307ddu, /* odd */
    0xbc2dee5282550b25u, /* tiny */
    0x2c9142e0fadcf7d1u, /* decode */
    0xc2fc155be1bb7855u, /* grouped */
    0x54f91685a70d8a14u, /* offset */
    0x5e037c64bf165276u, /* window */
    0xa15429983a3f4dc4u, /* boolean */
    0x7df58d8b40a45d01u, /* bits */
    0xa2e7becba7fa6bd2u, /* bias */
    0x6b734aa41f54dbcbu, /* lengths */
    0xf404b02381d3cf5eu, /* alibi */
    0x2d02be1bbbefd3f7u, /* softcap */
    0xdf1e33eed49494f2u, /* sinks */
    0x8b80a3fa01882b37u, /* one */
    0xcf596746979f3e2cu, /* f16 */
    0x0a1890de846e297bu, /* bf16 */
    0x015c2b3230cd535cu, /* mixed */
    0xf00fd1f90ba52a53u, /* map */
    0xfaf5579669dadf82u, /* ties */
    0x507265f539489f45u, /* all */
    0x82e3be33c82ba536u, /* rope */
    0x636f72398b2f46f6u, /* merge */
    0xebd0b211a948b159u, /* exp */
};
