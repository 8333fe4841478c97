/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */

static const uint64_t golden[] = {
    0x3a5b0c10d38d7961u, /* plain */
    0x51587e42163ba11bu, /* causal */
    0xb769711a063a80eeu, /* wide */
    0xd2cbf545ecdc497fu, /* odd */
    0xbc2dee5282550b25u, /* tiny */
    0x8a13d6a8bfeef401u, /* decode */
    0x9fea4efb0199a92bu, /* grouped */
    0x3b506c33c28a6d20u, /* offset */
    0xff17e9c8e8abdc6eu, /* window */
    0xf13d69948e96f502u, /* boolean */
    0xb0f3a821d4c39c19u, /* bits */
    0x1a77b8537cfe5024u, /* bias */
    0x072fd1a8f63ecbcdu, /* lengths */
    0x8e523e04e57e10e1u, /* alibi */
    0x2489c5053ca81a86u, /* softcap */
    0xff369c20d5f6967fu, /* sinks */
    0x3d3f0cfe98fe9e5eu, /* one */
    0xdc9f02af44343771u, /* f16 */
    0x10ac04a4ca3b4d42u, /* bf16 */
    0x0753ca65aa42ddeau, /* mixed */
    0x680e02689b9e4aa7u, /* map */
    0x3cd582978f0362ffu, /* all */
    0xea21bac1c226b283u, /* rope */
    0x12d8dcc6586f10a2u, /* merge */
    0x86484c18372c718cu, /* exp */
};
