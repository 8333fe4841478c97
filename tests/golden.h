/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */

static const uint64_t golden[] = {
    0xf026f0ed1ba6fb86u, /* plain */
    0x5a96b563a6683975u, /* causal */
    0x0290bb22fc737d0cu, /* wide */
    0xfc0ef24fefc307ddu, /* odd */
    0xbc2dee5282550b25u, /* tiny */
    0x0aa032b4f9051752u, /* decode */
    0xc2fc155be1bb7855u, /* grouped */
    0x54f91685a70d8a14u, /* offset */
    0x5e037c64bf165276u, /* window */
    0xa15429983a3f4dc4u, /* boolean */
    0x7df58d8b40a45d01u, /* bits */
    0xa2e7becba7fa6bd2u, /* bias */
    0x6b734aa41f54dbcbu, /* lengths */
    0xf404b02381d3cf5eu, /* alibi */
    0x329daa0e9592e14bu, /* softcap */
    0xdf1e33eed49494f2u, /* sinks */
    0x8b80a3fa01882b37u, /* one */
    0xcf596746979f3e2cu, /* f16 */
    0x0a1890de846e297bu, /* bf16 */
    0x015c2b3230cd535cu, /* mixed */
    0xf00fd1f90ba52a53u, /* map */
    0xfaf5579669dadf82u, /* ties */
    0x51d47e21573489ffu, /* all */
    0x06fc10bb26bbd25eu, /* keys */
    0xfcade5ae0ed158feu, /* values */
    0xe90f3174f614b24eu, /* xl */
    0xccd3c109de2d2dd5u, /* labels */
    0xe48e2b5b8748e665u, /* factor */
    0x059e4ffee4de2227u, /* toeplitz */
    0x008ee1ec46116246u, /* t5 */
    0xd6c715c33bc90cd9u, /* parabola */
    0x55728e6a623aec38u, /* gaussian */
    0x44eb523ae6a34c42u, /* span */
    0x1cef29d1d877a113u, /* modify */
    0x51c93fb412c464e2u, /* terms */
    0x39f22b5f257989f9u, /* rows */
    0x1fc858651cf27257u, /* rows terms */
    0x6892e89636049505u, /* splits */
    0x92c032018e3aca49u, /* weights */
    0xe46bc7bf5784ac65u, /* map raw */
    0xec15abc0d18cbb70u, /* map scores */
    0x82e3be33c82ba536u, /* rope */
    0x636f72398b2f46f6u, /* merge */
    0xebd0b211a948b159u, /* exp */
    0x0543bb451388bc34u, /* relu raw */
    0xb909ddfec140f0a7u, /* relu len */
    0x30e6212c82f35f6eu, /* relu var */
    0xc2cefb3c05847b03u, /* relu gau */
    0xe3b73a1ca44bebdfu, /* relu norm */
    0x68ea7de9db8297e3u, /* relu rela */
    0x0830d0e43baeb164u, /* edges */
    0xb6b16bd0dba0a367u, /* sinusoid */
    0xf8a0896df73432aau, /* signal */
    0x0690bbcd306c28f0u, /* window */
    0xdffa80b2b7b6c6abu, /* bells renorm */
    0x4a58d7785ed57b72u, /* bells */
    0x65aa03e966e8d39bu, /* span */
    0xcdae38b805d7f5eeu, /* schedule band */
    0x85f8e3333dc2b3cdu, /* schedule dilated */
    0xa24ce46872ac9a3cu, /* schedule lists */
    0xf8c2670af31bf019u, /* schedule image */
    0x6f0517ec7e7e4a84u, /* schedule sparse */
    0xdb0cf8a1ae170fa8u, /* star */
    0x758d4cfa07c97965u, /* longformer */
    0x933e7c76c14e17c0u, /* etc */
    0x49fa5e22c49c944fu, /* tree */
    0xcab06a27429c4897u, /* segmented */
    0xac07d2ee2ff0b291u, /* hierarchy */
    0x5ea90f7e62ca1f71u, /* xl layer */
    0x6270802abe35e8c8u, /* recursive */
    0x5d6a32d11661d5f0u, /* gemm */
    0x1b35f0ad5bfcdef4u, /* sets */
    0x68f3aea6228bbc38u, /* luna */
    0xdeb767c1bf0de822u, /* luna causal */
    0x429c9badbcb2ea0fu, /* topk */
    0x0eae91559d95b59eu, /* topk lists */
    0x6b4567dbe15e7da9u, /* lsh */
    0x1af8f8fddbb08f3du, /* lsh qk */
    0x621dc308d161f28bu, /* routing */
    0x9b7669a4dfef9601u, /* routing update */
    0x7032d70849d704b6u, /* gated */
    0xf30c9cfec87bba8fu, /* sinkhorn */
    0x13ab7611a7cf20a3u, /* sinkhorn causal */
    0x61d6136e98d86922u, /* sortcut */
    0x832830279954d62au, /* sac */
    0x76f1df7030767ebbu, /* score mix */
    0x7fa6af76255fabf0u, /* realformer */
    0x3c3bf309855811ddu, /* predictive */
    0xadc0a1fcc47215d6u, /* evolving */
    0x646f92fabcee8286u, /* map apply */
    0x1d28feab7e0ec405u, /* lazyformer */
    0xbf6a43f4269b99e6u, /* camtl */
    0xd95e15b04a534eecu, /* synthesizer */
    0xba8f04827fd563ddu, /* multihead */
    0xbc8c7166d91d7345u, /* collaborative */
    0x6a49f941a7c849d8u, /* capsules */
    0xd1ccb6f3e2ae8a03u, /* talking */
    0x5353c875ce0db2a1u, /* losses */
    0xee4306e252a2861cu, /* layer norm */
    0x0314742952e4861cu, /* gtrxl */
    0x31d2bcf4e4f6521bu, /* trajectory */
    0x6273fdb18d6bfd1au, /* fourier */
    0x22ae57d17c6103ecu, /* fnet */
    0xb38fd7c653d5e608u, /* gmlp */
    0xb24293284cb06c30u, /* mixer */
    0xf5eaf8afb90fa189u, /* norm sum */
    0xeac3e447bc3c7dfeu, /* activations */
    0xfb6576b19308f4d1u, /* encoder */
    0x8ed388aa7aa1386au, /* decoder */
    0xfcd2f56f5ca5959fu, /* decoder step */
    0x02331423ab2d0282u, /* reversible */
    0x9b84545d9cf84751u, /* reversible inverse */
    0xfbdadac47766974du, /* universal */
    0x731dfa3f05ce3936u, /* exits */
    0xc94c461a9157a7b9u, /* exit targets */
    0xcd1d536aeb73fb49u, /* confidence */
    0xcdad3d0aa0093b2du, /* exit decoder */
};
