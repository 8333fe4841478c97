/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */

static const uint64_t golden[] = {
    0x917c6232aa56fc93u, /* plain */
    0x3b9bef3a20f86d30u, /* causal */
    0xa674c72e472f2dc9u, /* wide */
    0xfc0ef24fefc307ddu, /* odd */
    0xbc2dee5282550b25u, /* tiny */
    0x869214c9e6c72c33u, /* decode */
    0x4a0c6198f961ba9fu, /* grouped */
    0x54f91685a70d8a14u, /* offset */
    0x33ae769c5dc85620u, /* window */
    0xb867b0ec6c4cff45u, /* boolean */
    0x15e170409a15d394u, /* bits */
    0x2029176194af9465u, /* bias */
    0x6b734aa41f54dbcbu, /* lengths */
    0x2521a8e696f3d68cu, /* alibi */
    0xab6fbd2552ce23c0u, /* softcap */
    0xdf1e33eed49494f2u, /* sinks */
    0xbc19e53df812ac74u, /* one */
    0xcf596746979f3e2cu, /* f16 */
    0x0a1890de846e297bu, /* bf16 */
    0x5276c1d6d3d569f6u, /* mixed */
    0x58d2505b934659edu, /* map */
    0x697e9366f1257d6bu, /* ties */
    0x51d47e21573489ffu, /* all */
    0x39be8fe1e21500a2u, /* keys */
    0xc3862a7f92b9584au, /* values */
    0x073d7bcba0f99306u, /* xl */
    0xd8270b6e7e9b063du, /* labels */
    0x7c9de7d7eabb1f8bu, /* factor */
    0x9119b3f0fbe8077bu, /* toeplitz */
    0xcef133d82bc563d8u, /* t5 */
    0x9ca587216669c72cu, /* parabola */
    0x3f2f188eb008612fu, /* gaussian */
    0xa0f164a7a87f5b90u, /* span */
    0xb0ed4720c1aaffa6u, /* modify */
    0x9a2e3842f0b3a1d5u, /* terms */
    0x39f22b5f257989f9u, /* rows */
    0xe24d8451d2bab6dbu, /* rows terms */
    0x3c3a453884161fabu, /* splits */
    0xed7d25f0d572ceb9u, /* weights */
    0xe1f558c149d50be9u, /* map raw */
    0x7dabfaa70f1061fcu, /* map scores */
    0xa685882b60729656u, /* start */
    0x8839693b8fe565e8u, /* offsets */
    0x2fa2fcd990c05ef6u, /* aligned */
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
    0xad04035e62411c98u, /* schedule image */
    0x2ca8d2963f6c8221u, /* schedule sparse */
    0xdb0cf8a1ae170fa8u, /* star */
    0xe258b5ad6ae9355au, /* longformer */
    0x933e7c76c14e17c0u, /* etc */
    0xc0826d7ab585ffb0u, /* tree */
    0xcab06a27429c4897u, /* segmented */
    0xac07d2ee2ff0b291u, /* hierarchy */
    0x5ea90f7e62ca1f71u, /* xl layer */
    0x8a8967d462854768u, /* recursive */
    0x3d5f883c2d7779b8u, /* gemm */
    0x1b35f0ad5bfcdef4u, /* sets */
    0x68f3aea6228bbc38u, /* luna */
    0x15b334552296b14eu, /* luna causal */
    0x4487ca2bb41dc10fu, /* topk */
    0x0eae91559d95b59eu, /* topk lists */
    0xa6a42083a38a3f06u, /* lsh */
    0x430f974c1563dcdau, /* lsh qk */
    0x579baec1bf1c5708u, /* routing */
    0x9b7669a4dfef9601u, /* routing update */
    0x7032d70849d704b6u, /* gated */
    0xcc7c908b5db21a0eu, /* sinkhorn */
    0xcd8660b169e94541u, /* sinkhorn causal */
    0x58b77bc4fa8c9d88u, /* sortcut */
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
    0x7e5a720d23318541u, /* capsules */
    0xd1ccb6f3e2ae8a03u, /* talking */
    0x5353c875ce0db2a1u, /* losses */
    0xc49d83f861de5792u, /* layer norm */
    0x0314742952e4861cu, /* gtrxl */
    0x31d2bcf4e4f6521bu, /* trajectory */
    0x6273fdb18d6bfd1au, /* fourier */
    0x42cdbe35955171b7u, /* fnet */
    0xf0bc60641d27d2c1u, /* gmlp */
    0x7739fc91f2541f23u, /* mixer */
    0xf5eaf8afb90fa189u, /* norm sum */
    0xef624ceac6a3757cu, /* activations */
    0x1aa8cb71148cb41eu, /* encoder */
    0x0f04041f485d92f3u, /* decoder */
    0xa1f536dd41eb767bu, /* decoder step */
    0x02331423ab2d0282u, /* reversible */
    0x9b84545d9cf84751u, /* reversible inverse */
    0xdd6e4ef6b6b70ae1u, /* universal */
    0x731dfa3f05ce3936u, /* exits */
    0xc94c461a9157a7b9u, /* exit targets */
    0xe15d5e719b332445u, /* confidence */
    0xcd9d5b93f2a02d11u, /* exit decoder */
    0x3b48c3acdb831dd0u, /* lsh wrap */
    0x2d667fe3588ccd7fu, /* routing learned */
    0x4955f130b74d0e2eu, /* sinkhorn null */
    0xe3de3099d095fa8au, /* clustered causal */
    0x6473d609be8ada5du, /* probsparse samples */
    0x1b93a51e24dda68au, /* nystrom by batch */
    0xa60532a8e22a6bd1u, /* nystrom valid */
    0x4a740023960496c9u, /* multihead bias_kv */
    0x8f684bb4daa0f138u, /* segment bias */
    0x3423c263fb0517b0u, /* gemm codes */
    0x6119d89d44f32cebu, /* compute f16 */
};
